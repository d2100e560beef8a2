"""From a fitted predictor to answers about sets, in NumPy.

1. `job_table` encodes every job on a device and in a sharing mode once, as a row; sets are rows of the table.
2. `contention` gives slowdowns: `set_network` computes the networks' answers, which are averaged with those of the Gaussian
   process; then `bounds` that hold for every answer (one more job makes none faster), `shares` of the multiprocessors and
   `shared_slices`. Jobs on slices of their own under MIG are slower by `own_slices` instead.
3. `predictor.Predictor` makes arrays of these, and `describe` predictions with intervals (`upper_ends`) and reasons
   (`explain`).
"""
