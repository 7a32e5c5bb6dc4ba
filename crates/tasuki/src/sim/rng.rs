//! The one source of chance: the same seed, the same story.

/// SplitMix64: small, and good enough to choose what happens next.
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

    /// One of so many, from 0.
    pub(super) fn below(&mut self, count: u64) -> u64 {
        self.next() % count.max(1)
    }

    /// From the first to just before the second.
    pub(super) fn between(&mut self, first: u64, end: u64) -> u64 {
        first + self.below(end - first)
    }

    /// So often in a thousand.
    pub(super) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// One of these.
    pub(super) fn pick<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.below(some.len() as u64) as usize]
    }

    /// One of these, each as often as its weight says.
    pub(super) fn weigh<T: Copy>(&mut self, some: &[(u64, T)]) -> T {
        let mut left = self.below(some.iter().map(|(weight, _)| weight).sum());
        for &(weight, one) in some {
            match left.checked_sub(weight) {
                Some(rest) => left = rest,
                None => return one,
            }
        }
        unreachable!("less than all weights together is within one of them")
    }
}
