"""Numbers: scales, zero points, fixed point, lookup tables, packing. No operators, no graph.

Files with a jax_ counterpart hold the same functions for numpy and for traced arrays, equal bit for
bit (the counterparts need 64-bit types). What is marked "static" works on Python numbers when a
model is prepared, and has no counterpart: its results go to either half. Fixed-point raw values are
int32 or int16 arrays, their count of integer bits an argument; multipliers and shifts are integers
or integer arrays that broadcast with the data (of equal rank, for jax). Shifts are positive to the
left.

params (static)
    Quantization, Blockwise         how a tensor's integers stand for reals
    integer_range                   smallest and largest value of a dtype, or of its narrow range
    tensor_scale, tensor_zero_point the only scale as a float64, the only zero point
    channel_scales, channel_zero_points  one for each channel, a single one repeated
    along_axis                      values of the channels, shaped to broadcast with a tensor
    activation_range                fused activation as the output's integers
affine (counterpart)
    quantize, dequantize            per tensor, per channel on any axis; dequantize: blockwise too
    round_half_away                 std::round (numpy; jax has it as lax.round)
    dequantize_blocks               blockwise and multi-axis: scales are tensors
    block_parameters                such scales and zero points, shaped to divide a tensor (static)
    symmetric_quantize, asymmetric_quantize  rows of floats on the fly, for dynamic range kernels
    fake_quantize, nudged_range     TensorFlow's fake quantization
    quantize_and_dequantize         the GPU delegate's
eigen (counterpart)
    tanh, logistic                  of float32, as LiteRT's recurrent kernels compute them
fixed_point (counterpart)
    multiply_by_quantized_multiplier        int32 accumulators
    multiply_by_quantized_multiplier_64     int64 accumulators (int16 activations)
    multiply_smaller_than_one, multiply_greater_than_one  ...SmallerThanOneExp, ...GreaterThanOne
    saturating_rounding_doubling_high_mul, saturating_doubling_high_mul  products of Q0 numbers
    rounding_divide_by_pot, saturating_left_shift, saturating_multiply_by_pot  powers of two
    saturating_add, saturating_sub, rounding_half_sum
    rescale                         the same number with other integer bits
    count_leading_zeros, count_leading_sign_bits, floor_log2
fixed_math (counterpart)
    exp_on_negative_values, logistic, tanh  of a Qm number, as a Q0 number
    one_over_one_plus_x, one_minus_x_over_one_plus_x  on [0, 1]
    log_at_least_one                natural logarithm of a Qm number
    reciprocal, inverse_sqrt        of an integer, with its exponent
multiplier (static)
    quantize_multiplier, quantize_multipliers  real -> int32 multiplier and shift; arrays
    quantize_multiplier_smaller_than_one, quantize_multiplier_greater_than_one
    downscale_multiplier            int32 multiplier -> int16
    softmax_multiplier, log_softmax_multipliers, input_radius, checked_log2
lookup (counterpart: lut_lookup, logistic_int16, tanh_int16)
    lookup_table                    table of a real function on int8, uint8 or int16 (static)
    lut_lookup                      its values; int16 ones are interpolated
    exp, log, rsqrt, elu, gelu, ... the real functions, in float32 as C computes them (static)
    logistic_int16, tanh_int16, int16_input_multiplier  LOGISTIC and TANH of int16
requantize (counterpart, but for what is static)
    rescale_multiplier              source scale / target scale (static)
    convolution_multipliers         x * w / y for each channel: convolutions (static)
    effective_scales                the same as float64, FULLY_CONNECTED's reference (static)
    product_multiplier              the same, one scale each, product in float32: BATCH_MATMUL
    float32_product_multiplier      the same, all in float32: MUL, PRELU (static)
    bias_scale_fits                 whether a bias has about the scale that its kernel assumes
    requantize                      QUANTIZE between integers
    requantize_accumulator          accumulator -> output integers: scale, zero point, clamp
    requantize_accumulator_by_real  the same in float64, as FULLY_CONNECTED's reference kernel
    add_bias, clamp
packing (counterpart)
    pack, unpack                    int4, uint4, int2 <-> bytes, the lowest bits first
"""
