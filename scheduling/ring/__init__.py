"""Ring-all-reduce jobs under communication contention: model, schedulers, exact solver, online run.

`model` has equations 6 to 9, `fabric` the links, `engine` the execution of a schedule over time; every
scheduler is a function of (cluster, jobs) that drives the engine.

Source: Yu, Ji, Rajan, Liu, "On Scheduling Ring-All-Reduce Learning Jobs in Multi-Tenant GPU Clusters with
Communication Contention", MobiHoc 2022, arXiv 2207.07817.
"""
