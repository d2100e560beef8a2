"""Kubernetes scheduler extender: filter and prioritize, after the types of `k8s.io/kube-scheduler/extender/v1`."""
