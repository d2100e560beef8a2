"""The Gaussian process over members of co-location sets, fitted to training sets and conditioned on observations.

`known_members` gives every job on a device and in a sharing mode a number, and `members` its features; `kernel` compares
members, `rows` compares a member beside its partners with others, on the scale of slowdowns in `link`. `process` conditions
on rows with targets (`covariances.Evidence`), discounts those that others contradict (`leave_one_out`), and solves for means
and variances (`solutions`): exactly, or through some of the rows if there are many (`inducing`, `precision`). What is
implausible or goes beyond pairs has an effect of its own: of a job (`own_effects`), a pair (`confirmed_pairs`) or a set
(`observed_sets`).

`set_process` is the process of the training sets, half of every prediction. `predictor.learning` has another around the
predictor's answers, conditioned on what was observed.
"""
