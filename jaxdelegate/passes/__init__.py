"""Model -> Model: shapes, folded constants, explicit state, tensor lists. Knows no device."""
