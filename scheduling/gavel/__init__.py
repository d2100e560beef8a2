"""Gavel: shares of every GPU type by a linear programme, realised round by round.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020. `problem` is
what all allocation policies read, `programmes` are the linear ones, `rules` those without a programme, `rounds` turns shares
into who runs next.
"""
