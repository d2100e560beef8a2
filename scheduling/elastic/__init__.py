"""IceFrog: elastic allocation of GPUs and frozen layers by effective progress."""
