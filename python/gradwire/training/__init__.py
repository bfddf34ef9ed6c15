"""Real models on real data, small enough to train on a laptop, to measure what gradients cost.

`gradwire bench train` runs the worker of this package on several hosts; `gradwire.training.worker`
says what it prints. `recipes` has the models by name, `methods` the ways to exchange gradients.
Importing these modules takes PyTorch and NumPy.
"""
