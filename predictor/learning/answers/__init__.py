"""Answers about queried sets, given the conditioned process, in one of two ways.

For policies, arrays: `corrections` adds means of pairs to thousands of predicted slowdowns. For people, predictions with
intervals: `pair_answers` has means, variances and contributions by observation, from which `shifts` makes one correction a
member with the observations behind it (`basis`), and `corrector` applies it. Both ways then share what overrides a mean over
pairs: solo step times that a query states (`stated_alone`) or that follow from a related job (`related_alone`), largest
slowdowns of pairs in observed sets (`pair_bounds`), smallest ones of sets by their parts (`parts`), and those of
`time_sliced` jobs.
"""
