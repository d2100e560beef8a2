"""Many measurements, resumable at any kill.

A plan (made in `predictor.campaigns.plan`) lists the runs; the runner carries out those that no slice holds yet.
"""
