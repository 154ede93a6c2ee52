"""A stack of conv-norm-pool-act blocks and a linear head on the CPU, with derivatives of first and second order.

What autograd does in some hundred small operations a step is done here by hand: convolutions are matrix products
(`convolution.py`, `winograd.py`), and batch norm, pooling and activation are one pass (`norm_pool.py`); `stack.py` puts
them together. It all needs numba (``pip install cfsl[fast]``), and is imported only where its absence is dealt with.
"""
