"""Arithmetic of quantized numbers, without operators or graphs.

Operator rules and reference kernels both build on it. Functions on arrays exist for numpy and for
traced arrays of jax (which need 64-bit types) and give equal bits: `jax_affine`, `jax_fixed_point`
and `jax_requantize` are the counterparts of the modules without `jax_`; functions of `eigen`,
`fixed_math` and `lookup` take the module that does the arithmetic as a parameter. What is computed
when a model is prepared is numpy only.

Fixed-point raw values are int32 or int16 arrays, whose number of integer bits is a parameter.
Multipliers and shifts are integers or integer arrays that broadcast with the data (for jax: of
equal rank). Shifts are positive to the left.

params          scales, zero points, ranges
affine          reals to integers and back, per tensor, per channel, in blocks, on the fly
fixed_point     products, sums and shifts that round and saturate
fixed_math      exp, logistic, tanh, log, 1/x, 1/sqrt(x) of fixed-point numbers
multiplier      reals as an int32 multiplier and a shift
requantize      integers of one scale as integers of another
lookup          real functions of quantized tensors through tables
eigen           tanh and logistic as LiteRT's recurrent kernels compute them
packing         int4, uint4 and int2 in bytes
"""
