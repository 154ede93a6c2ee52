"""A stack of conv-norm-pool-act blocks and a linear head, with first and second derivatives.

It is for the CPU. Autograd takes some hundred small operations a step; these are a few large ones.
Convolutions are matrix products (`convolution.py`, `winograd.py`), and batch norm, pooling and
activation are one pass (`norm_pool.py`); `stack.py` puts them together. All of it needs numba
(``pip install cfsl[fast]``): only modules that handle its absence import this package.
"""
