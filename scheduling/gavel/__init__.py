"""Gavel: shares of every GPU type by a linear programme, implemented round by round.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.
`problem` is the input of all allocation policies, `programmes` has those with a linear programme, `rules`
those without, and `rounds` turns shares into what runs next.
"""
