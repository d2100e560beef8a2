"""Kubernetes scheduler extender: filter and prioritize, with the types of
`k8s.io/kube-scheduler/extender/v1`."""
