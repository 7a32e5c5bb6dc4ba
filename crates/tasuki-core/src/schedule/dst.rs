//! Rules for clock changes (daylight saving time).

use crate::string_enum::string_enum;

string_enum! {
    /// The rule for a wall-clock time that does not exist because the clocks go forward.
    pub enum GapRule, "dst gap" {
        /// The schedule does not fire.
        Skip = "skip",
        /// The schedule fires once, at the instant of the clock change.
        Shift = "shift",
    }
}

string_enum! {
    /// The rule for a wall-clock time that occurs twice because the clocks go back.
    pub enum FoldRule, "dst fold" {
        /// The schedule fires at the first occurrence only.
        Once = "once",
        /// The schedule fires at both occurrences.
        Twice = "twice",
    }
}

/// The rule of a schedule for clock changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DstRule {
    /// The rule for times that are skipped when the clocks go forward.
    pub gap: GapRule,
    /// The rule for times that are repeated when the clocks go back.
    pub fold: FoldRule,
}

impl DstRule {
    /// Default for schedules with times of day: every planned time fires exactly once.
    pub const TIME_OF_DAY: Self = Self { gap: GapRule::Shift, fold: FoldRule::Once };
    /// Default for schedules that fire every few minutes or hours: the interval in elapsed time stays.
    pub const PERIODIC: Self = Self { gap: GapRule::Skip, fold: FoldRule::Twice };
}

/// The rules that a job's definition chooses; `None`: the default of the kind of schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DstRuleOverrides {
    /// The rule for times that are skipped when the clocks go forward.
    pub gap: Option<GapRule>,
    /// The rule for times that are repeated when the clocks go back.
    pub fold: Option<FoldRule>,
}

impl DstRuleOverrides {
    pub(super) fn or_default(self, rule: DstRule) -> DstRule {
        DstRule { gap: self.gap.unwrap_or(rule.gap), fold: self.fold.unwrap_or(rule.fold) }
    }
}
