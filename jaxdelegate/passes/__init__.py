"""Model -> Model: shapes, folded constants, explicit state, static tensor lists. Knows no device."""
