//! The simulation's only random number generator: the same seed gives the same simulation.

/// SplitMix64: small, and good enough to choose the next step.
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `count - 1`.
    pub(super) fn below(&mut self, count: u64) -> u64 {
        self.next() % count.max(1)
    }

    /// Returns a number from `first` to `end - 1`.
    pub(super) fn between(&mut self, first: u64, end: u64) -> u64 {
        first + self.below(end - first)
    }

    /// Returns `true` with a probability of `per_mille` / 1000.
    pub(super) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// Picks one of the values, all with the same probability.
    pub(super) fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }

    /// Picks one of the values with a probability proportional to its weight.
    pub(super) fn pick_weighted<T: Copy>(&mut self, values: &[(u64, T)]) -> T {
        let mut remaining = self.below(values.iter().map(|(weight, _)| weight).sum());
        for &(weight, value) in values {
            match remaining.checked_sub(weight) {
                Some(next_remaining) => remaining = next_remaining,
                None => return value,
            }
        }
        unreachable!("a number below the sum of all weights falls within one of them")
    }
}
