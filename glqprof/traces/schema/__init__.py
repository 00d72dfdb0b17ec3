"""The types that every room shares: trace, capture manifest, bucket rules, bench results."""
