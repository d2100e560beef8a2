"""Measurement campaigns that can be resumed after a kill at any time.

A plan (made in `predictor.campaigns.plan`) lists the runs; the runner does those not in any slice yet.
"""
