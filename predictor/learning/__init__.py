"""Corrects a fitted predictor by what was observed in use, without refitting.

`posterior.Posterior` takes observations in and answers like a predictor. After something new, `state.State` builds what
answers follow from, and `corrected_predictor` answers from that, with these parts:

1. `evidence`: observations beside the predictor's answers, with errors of solo step times taken out, become rows of a
   Gaussian process (`predictor.gaussian_process`) around these answers.
2. `answers`: what the process says of a queried set moves the predictor's slowdowns, step times and intervals.
3. `memory`: what was observed of memory moves the memory of members, and decides whether a set fits.

`answers` and `memory` import `evidence`, which imports neither. The rest asks a posterior: `suggesting` which set to run
next (from `expected_steps`), `summary` what observations changed, `drift` whether they helped.
"""
