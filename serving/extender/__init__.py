"""Kubernetes scheduler extender: filter and prioritize.

The types are those of `k8s.io/kube-scheduler/extender/v1`.
"""
