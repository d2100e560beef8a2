"""Gavel: shares of every GPU type by a linear program, implemented round by round.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.
`problem` is the input of all allocation policies, `programs` has those with a linear program, `rules`
those without, and `rounds` turns shares into what runs next.
"""
