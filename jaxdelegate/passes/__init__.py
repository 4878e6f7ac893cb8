"""Model -> Model: shapes, folded constants, explicit state, tensor lists; for any device."""
