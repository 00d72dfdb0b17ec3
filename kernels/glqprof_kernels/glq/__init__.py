"""GLQ: E8-lattice weights behind a randomized Hadamard transform, as a fused MoE with several variants."""
