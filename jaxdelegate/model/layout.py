"""The tables of schema.fbs that describe a model, with their fields in schema order.

A union has two fields, its type first. Deprecated fields are included. The options tables of
operators are read by the generated accessors instead.
"""

from jaxdelegate.model.flatbuffer import layout

LAYOUT = layout(
    {
        "Model": "version operator_codes subgraphs description buffers metadata_buffer metadata "
        "signature_defs external_buffer_groups external_buffers",
        "OperatorCode": "deprecated_builtin_code custom_code version builtin_code",
        "SubGraph": "tensors inputs outputs operators name debug_metadata_index",
        "Buffer": "data offset size",
        "ExternalBufferGroup": "name",
        "ExternalBuffer": "id group offset length packing",
        "Metadata": "name buffer",
        "SignatureDef": "inputs outputs signature_key deprecated_tag subgraph_index",
        "TensorMap": "name tensor_index",
        "Operator": "opcode_index inputs outputs builtin_options_type builtin_options "
        "custom_options custom_options_format mutating_variable_inputs intermediates "
        "large_custom_options_offset large_custom_options_size builtin_options_2_type "
        "builtin_options_2 debug_metadata_index",
        "Tensor": "shape type buffer name quantization is_variable sparsity shape_signature "
        "has_rank variant_tensors external_buffer",
        "VariantSubType": "shape type has_rank",
        "QuantizationParameters": "min max scale zero_point details_type details "
        "quantized_dimension",
        "CustomQuantization": "custom",
        "BlockwiseQuantization": "scales zero_points block_size",
        "MultiAxisQuantization": "scales zero_points block_size quantized_dimensions",
        "SparsityParameters": "traversal_order block_map dim_metadata",
        "DimensionMetadata": "format dense_size array_segments_type array_segments "
        "array_indices_type array_indices",
        "Int32Vector": "values",
        "Uint16Vector": "values",
        "Uint8Vector": "values",
    }
)
