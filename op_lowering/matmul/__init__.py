"""Matrix products: FULLY_CONNECTED and BATCH_MATMUL."""
