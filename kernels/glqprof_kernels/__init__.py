"""The kernels whose A/B glqprof was made for; each subpackage is one operation with several variants."""
