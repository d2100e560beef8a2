"""Observations as evidence of the process, and what is taken to be known before them.

`observed` has the distinct members of observed sets with the predictor's answers; `measured_alone` what to state to the
predictor of jobs that ran alone, so that these answers already use it. `step_times` splits observed over predicted step times
into an error of the solo step time (`solo_errors`, within `solo_limits`) and one of the slowdown. `prior` says how far the
predictor may be off: little about pairs that it was trained on (`training_pairs`), unless observations contradict them.
`network_share` is the weight of its networks, `expected_sets` what it expects with that weight.
"""
