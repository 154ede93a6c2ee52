"""A stack of conv-norm-pool-act blocks and a linear head on the CPU, with first and second derivatives.

Autograd takes some hundred small operations a step; here the same is done by hand in a few.
Convolutions are matrix products (`convolution.py`, `winograd.py`), and batch norm, pooling and
activation are one pass (`norm_pool.py`); `stack.py` puts them together. All of it needs numba
(``pip install cfsl[fast]``): only modules that handle its absence import this package.
"""
