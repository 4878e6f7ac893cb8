"""Conversions between dtypes: CAST, QUANTIZE, DEQUANTIZE, FAKE_QUANT."""
