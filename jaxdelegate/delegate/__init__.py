"""JaxDelegate: options -> policy; partitions -> stored or compiled programs that run as kernels."""
