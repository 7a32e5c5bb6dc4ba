//! What happens when the clocks change: a rule that can be chosen and seen.

use crate::string_enum::words;

words! {
    /// What becomes of a wall time that is skipped because the clocks go forward.
    pub enum GapRule, "dst gap" {
        /// It does not run that day.
        Skip = "skip",
        /// It runs once, at the moment of the shift.
        Shift = "shift",
    }
}

words! {
    /// What becomes of a wall time that comes twice because the clocks go back.
    pub enum FoldRule, "dst fold" {
        /// It runs the first time only.
        Once = "once",
        /// It runs both times.
        Twice = "twice",
    }
}

/// The rule in force for a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DstRule {
    /// When the clocks go forward.
    pub gap: GapRule,
    /// When the clocks go back.
    pub fold: FoldRule,
}

impl DstRule {
    /// For schedules that name times of day: what was planned for a day happens, once.
    pub const FIXED: Self = Self { gap: GapRule::Shift, fold: FoldRule::Once };
    /// For schedules that go by the minute or hour: the rhythm of real time goes on.
    pub const RHYTHM: Self = Self { gap: GapRule::Skip, fold: FoldRule::Twice };
}

/// What a job's owner chose; what is left open follows from the kind of schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DstChoice {
    /// When the clocks go forward.
    pub gap: Option<GapRule>,
    /// When the clocks go back.
    pub fold: Option<FoldRule>,
}

impl DstChoice {
    pub(super) fn or(self, rule: DstRule) -> DstRule {
        DstRule { gap: self.gap.unwrap_or(rule.gap), fold: self.fold.unwrap_or(rule.fold) }
    }
}
