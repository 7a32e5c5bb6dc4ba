//! The rules between settings.

use std::fmt::Write as _;

use super::Settings;
use crate::Language;

/// Two or more settings that must agree.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// What must hold, in English; names in braces are settings.
    pub english: &'static str,
    /// The same in Japanese.
    pub japanese: &'static str,
    holds: fn(&Settings) -> bool,
}

/// A rule that does not hold, with the values that break it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenRule {
    english: String,
    japanese: String,
}

impl BrokenRule {
    /// The rule and the values: `heartbeat_ttl (2s) must be at least three times …`
    pub fn message(&self, language: Language) -> &str {
        match language {
            Language::English => &self.english,
            Language::Japanese => &self.japanese,
        }
    }
}

/// Every rule there is.
pub const RULES: &[Rule] = &[
    Rule {
        english: "{leader_ttl} must be at least three times {leader_renew}",
        japanese: "{leader_ttl} は {leader_renew} の3倍以上でなければなりません",
        holds: |s| s.leader_ttl >= 3 * s.leader_renew,
    },
    Rule {
        english: "{leader_ttl} must be at least twice {leader_renew} plus {leader_margin}, or a leader would stop acting between two renewals",
        japanese: "{leader_ttl} は {leader_renew} の2倍と {leader_margin} の和以上でなければなりません（さもないとリーダーが更新の合間に停止します）",
        holds: |s| s.leader_ttl >= 2 * s.leader_renew + s.leader_margin,
    },
    Rule {
        english: "{leader_stale} must be at least three times {leader_tick}, or a healthy leader would be deposed",
        japanese: "{leader_stale} は {leader_tick} の3倍以上でなければなりません（さもないと健全なリーダーが降格されます）",
        holds: |s| s.leader_stale >= 3 * s.leader_tick,
    },
    Rule {
        english: "{heartbeat_ttl} must be at least three times {heartbeat_interval}",
        japanese: "{heartbeat_ttl} は {heartbeat_interval} の3倍以上でなければなりません",
        holds: |s| s.heartbeat_ttl >= 3 * s.heartbeat_interval,
    },
    Rule {
        english: "{reassign_after} must be at least twice {leader_tick}, or runs would be taken back before they can start",
        japanese: "{reassign_after} は {leader_tick} の2倍以上でなければなりません（さもないと開始前に実行が取り上げられます）",
        holds: |s| s.reassign_after >= 2 * s.leader_tick,
    },
    Rule {
        english: "{lease_ttl} must be at least four times {lease_renew}",
        japanese: "{lease_ttl} は {lease_renew} の4倍以上でなければなりません",
        holds: |s| s.lease_ttl >= 4 * s.lease_renew,
    },
    Rule {
        english: "two thirds of {lease_ttl}, when running work gets TERM, must be at least {outage_tolerance} plus {lease_renew}",
        japanese: "{lease_ttl} の3分の2（実行中の処理に TERM を送る時点）は {outage_tolerance} と {lease_renew} の和以上でなければなりません",
        holds: |s| s.term_after() >= s.outage_tolerance + s.lease_renew,
    },
    Rule {
        english: "{lease_ttl} less {kill_margin}, when running work gets KILL, must be later than two thirds of it, when it gets TERM",
        japanese: "{lease_ttl} から {kill_margin} を引いた時点（KILL）は、その3分の2の時点（TERM）より後でなければなりません",
        holds: |s| s.kill_after() > s.term_after(),
    },
    Rule {
        english: "{continuation_retry_count} times {continuation_retry_interval} must be at most half of {lease_ttl}",
        japanese: "{continuation_retry_count} × {continuation_retry_interval} は {lease_ttl} の半分以下でなければなりません",
        holds: |s| 2 * s.continuation_retry_count * s.continuation_retry_interval <= s.lease_ttl,
    },
    Rule {
        english: "{skip_late_after} must be at least {assign_ahead} plus {leader_ttl}, or a change of leader would skip runs",
        japanese: "{skip_late_after} は {assign_ahead} と {leader_ttl} の和以上でなければなりません（さもないとリーダー交代で実行が飛ばされます）",
        holds: |s| s.skip_late_after >= s.assign_ahead + s.leader_ttl,
    },
    Rule {
        english: "{retry_backoff_cap} must be at least {retry_backoff}",
        japanese: "{retry_backoff_cap} は {retry_backoff} 以上でなければなりません",
        holds: |s| s.retry_backoff_cap >= s.retry_backoff,
    },
];

impl Rule {
    /// The settings it speaks of, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.english.split('{').skip(1).map(|rest| rest.split_once('}').expect("closed").0)
    }

    fn explain(&self, text: &'static str, settings: &Settings) -> String {
        let mut message = String::new();
        for (index, part) in text.split('{').enumerate() {
            let (name, rest) = match index {
                0 => ("", part),
                _ => part.split_once('}').expect("every brace in a rule is closed"),
            };
            if let Some(value) = settings.get(name) {
                write!(message, "{name} ({value})").expect("a string takes all");
            }
            message.push_str(rest);
        }
        message
    }
}

/// The rules that do not hold.
pub(super) fn broken(settings: &Settings) -> Vec<BrokenRule> {
    let broken = RULES.iter().filter(|rule| !(rule.holds)(settings));
    broken
        .map(|rule| BrokenRule {
            english: rule.explain(rule.english, settings),
            japanese: rule.explain(rule.japanese, settings),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(changes: &[(&str, &str)]) -> Vec<String> {
        match Settings::default().with(changes) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        }
    }

    /// Each rule, broken once and alone, by the smallest change; and the same change one step
    /// milder, which is allowed.
    #[test]
    fn every_rule_is_violated_once_and_explains_itself() {
        let table: &[(&[(&str, &str)], &[(&str, &str)], &str)] = &[
            (
                &[("leader_ttl", "2s"), ("leader_margin", "0s")],
                &[("leader_ttl", "3s"), ("leader_margin", "0s")],
                "leader_ttl (2s) must be at least three times leader_renew (1s)",
            ),
            (
                &[("leader_ttl", "4s"), ("leader_margin", "3s")],
                &[("leader_ttl", "5s"), ("leader_margin", "3s")],
                "leader_ttl (4s) must be at least twice leader_renew (1s) plus leader_margin (3s), or a leader would stop acting between two renewals",
            ),
            (
                &[("leader_stale", "2s")],
                &[("leader_stale", "3s")],
                "leader_stale (2s) must be at least three times leader_tick (1s), or a healthy leader would be deposed",
            ),
            (
                &[("heartbeat_ttl", "2s")],
                &[("heartbeat_ttl", "3s")],
                "heartbeat_ttl (2s) must be at least three times heartbeat_interval (1s)",
            ),
            (
                &[("reassign_after", "1999ms")],
                &[("reassign_after", "2s")],
                "reassign_after (1999ms) must be at least twice leader_tick (1s), or runs would be taken back before they can start",
            ),
            (
                &[("lease_renew", "8s"), ("outage_tolerance", "10s")],
                &[("lease_renew", "7500ms"), ("outage_tolerance", "10s")],
                "lease_ttl (30s) must be at least four times lease_renew (8s)",
            ),
            (
                &[("outage_tolerance", "18s")],
                &[("outage_tolerance", "17s")],
                "two thirds of lease_ttl (30s), when running work gets TERM, must be at least outage_tolerance (18s) plus lease_renew (3s)",
            ),
            (
                &[("kill_margin", "10s")],
                &[("kill_margin", "9s")],
                "lease_ttl (30s) less kill_margin (10s), when running work gets KILL, must be later than two thirds of it, when it gets TERM",
            ),
            (
                &[("continuation_retry_count", "16"), ("continuation_retry_interval", "1s")],
                &[("continuation_retry_count", "15"), ("continuation_retry_interval", "1s")],
                "continuation_retry_count (16) times continuation_retry_interval (1s) must be at most half of lease_ttl (30s)",
            ),
            (
                &[("skip_late_after", "34s")],
                &[("skip_late_after", "35s")],
                "skip_late_after (34s) must be at least assign_ahead (30s) plus leader_ttl (5s), or a change of leader would skip runs",
            ),
            (
                &[("retry_backoff", "16m")],
                &[("retry_backoff", "15m")],
                "retry_backoff_cap (15m) must be at least retry_backoff (16m)",
            ),
        ];
        assert_eq!(table.len(), RULES.len(), "a rule without its violation");
        for ((breaking, mild, message), rule) in table.iter().zip(RULES) {
            assert_eq!(complaints(breaking), [*message]);
            assert_eq!(complaints(mild), [""; 0], "{mild:?}");
            for name in rule.names() {
                assert!(message.contains(&format!("{name} (")), "{name} and its value are named");
            }
        }
    }

    #[test]
    fn both_languages_name_the_same_settings_and_values() {
        for rule in RULES {
            for name in rule.names() {
                assert!(Settings::default().get(name).is_some(), "{name} is no setting");
                assert!(rule.japanese.contains(&format!("{{{name}}}")), "{name} in Japanese");
            }
        }
        let refused = Settings::default().with(&[("heartbeat_ttl", "2s")]).unwrap_err();
        let message = refused[0].message(Language::Japanese);
        assert_eq!(
            message,
            "heartbeat_ttl (2s) は heartbeat_interval (1s) の3倍以上でなければなりません"
        );
    }
}
