"""Answers about queried sets, given the conditioned process, in one of two ways.

For policies, arrays: `corrections` adds means of pairs to thousands of predicted slowdowns. For people, predictions with
intervals: `pair_answers` makes a shift of every member, with what each observation contributed (`basis`), and `corrector`
applies it. Both ways then share what overrides a mean over pairs: solo step times that a query states (`stated_alone`) or
that follow from a related job (`related_alone`), largest slowdowns of pairs in observed sets (`pair_bounds`), smallest
ones of sets by their parts (`parts`), and those of `time_sliced` jobs.
"""
