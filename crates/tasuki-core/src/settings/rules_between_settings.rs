//! Rules between settings.

use std::fmt::Write as _;

use super::Settings;
use crate::Language;

/// A condition on the values of two or more settings.
#[derive(Debug, Clone, Copy)]
pub struct SettingsRule {
    /// The condition in English. Names in braces are settings.
    pub english: &'static str,
    /// The condition in Japanese. Names in braces are settings.
    pub japanese: &'static str,
    holds: fn(&Settings) -> bool,
}

/// A rule that does not hold, with the current values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenRule {
    english: String,
    japanese: String,
}

impl BrokenRule {
    /// The rule with the values: `heartbeat_ttl (2s) must be at least three times …`
    pub fn message(&self, language: Language) -> &str {
        match language {
            Language::English => &self.english,
            Language::Japanese => &self.japanese,
        }
    }
}

/// All rules.
pub const RULES: &[SettingsRule] = &[
    SettingsRule {
        english: "{leader_ttl} must be at least three times {leader_renew}",
        japanese: "{leader_ttl} は {leader_renew} の3倍以上でなければならない",
        holds: |s| s.leader_ttl >= 3 * s.leader_renew,
    },
    SettingsRule {
        english: "{leader_ttl} must be at least 2 × {leader_renew} + {leader_margin}, or a leader would stop acting between two renewals",
        japanese: "{leader_ttl} は {leader_renew} の2倍と {leader_margin} の和以上でなければならない（そうでないと、リーダーが次の更新の前に動作を止めてしまう）",
        holds: |s| s.leader_ttl >= 2 * s.leader_renew + s.leader_margin,
    },
    SettingsRule {
        english: "{leader_stale} must be at least three times {leader_tick}, or the term of a healthy leader would be ended",
        japanese: "{leader_stale} は {leader_tick} の3倍以上でなければならない（そうでないと、正常なリーダーの任期が終わってしまう）",
        holds: |s| s.leader_stale >= 3 * s.leader_tick,
    },
    SettingsRule {
        english: "{heartbeat_ttl} must be at least three times {heartbeat_interval}",
        japanese: "{heartbeat_ttl} は {heartbeat_interval} の3倍以上でなければならない",
        holds: |s| s.heartbeat_ttl >= 3 * s.heartbeat_interval,
    },
    SettingsRule {
        english: "{reassign_after} must be at least twice {leader_tick}, or the leader would reassign runs before they can start",
        japanese: "{reassign_after} は {leader_tick} の2倍以上でなければならない（そうでないと、実行が開始される前に別のワーカーに割り当てられてしまう）",
        holds: |s| s.reassign_after >= 2 * s.leader_tick,
    },
    SettingsRule {
        english: "{lease_ttl} must be at least four times {lease_renew}",
        japanese: "{lease_ttl} は {lease_renew} の4倍以上でなければならない",
        holds: |s| s.lease_ttl >= 4 * s.lease_renew,
    },
    SettingsRule {
        english: "2/3 × {lease_ttl} must be at least {outage_tolerance} + {lease_renew}, because a worker that cannot renew a lease sends SIGTERM after 2/3 × lease_ttl",
        japanese: "{lease_ttl} の3分の2（実行中のプロセスに SIGTERM を送る時点）は {outage_tolerance} と {lease_renew} の和以上でなければならない",
        holds: |s| s.sigterm_after_last_renewal() >= s.outage_tolerance + s.lease_renew,
    },
    SettingsRule {
        english: "{lease_ttl} - {kill_margin} must be more than 2/3 × lease_ttl, because a worker that cannot renew a lease sends SIGTERM after 2/3 × lease_ttl and SIGKILL after lease_ttl - kill_margin",
        japanese: "{lease_ttl} から {kill_margin} を引いた時点（SIGKILL を送る時点）は、lease_ttl の3分の2の時点（SIGTERM を送る時点）より後でなければならない",
        holds: |s| s.sigkill_after_last_renewal() > s.sigterm_after_last_renewal(),
    },
    SettingsRule {
        english: "{continuation_retry_count} times {continuation_retry_interval} must be at most half of {lease_ttl}",
        japanese: "{continuation_retry_count} × {continuation_retry_interval} は {lease_ttl} の半分以下でなければならない",
        holds: |s| 2 * s.continuation_retry_count * s.continuation_retry_interval <= s.lease_ttl,
    },
    SettingsRule {
        english: "{skip_late_after} must be at least {assign_ahead} plus {leader_ttl}, or runs would be skipped when the leader changes",
        japanese: "{skip_late_after} は {assign_ahead} と {leader_ttl} の和以上でなければならない（そうでないと、リーダーの交代時に実行がスキップされてしまう）",
        holds: |s| s.skip_late_after >= s.assign_ahead + s.leader_ttl,
    },
    SettingsRule {
        english: "{retry_backoff_cap} must be at least {retry_backoff}",
        japanese: "{retry_backoff_cap} は {retry_backoff} 以上でなければならない",
        holds: |s| s.retry_backoff_cap >= s.retry_backoff,
    },
];

impl SettingsRule {
    /// The names of the settings in the rule, in order.
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
            if let Some(value) = settings.find_value_text(name) {
                write!(message, "{name} ({value})").expect("writing to a string cannot fail");
            }
            message.push_str(rest);
        }
        message
    }
}

/// The rules that these settings break.
pub(super) fn find_broken_rules(settings: &Settings) -> Vec<BrokenRule> {
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

    fn problems_of(changes: &[(&str, &str)]) -> Vec<String> {
        match Settings::default().with_changes(changes) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        }
    }

    /// For each rule: the smallest change that breaks only this rule, and a slightly smaller change that
    /// is valid.
    #[test]
    fn every_rule_has_a_limit_and_a_message_with_the_values() {
        let table: &[(&[(&str, &str)], &[(&str, &str)], &str)] = &[
            (
                &[("leader_ttl", "2s"), ("leader_margin", "0s")],
                &[("leader_ttl", "3s"), ("leader_margin", "0s")],
                "leader_ttl (2s) must be at least three times leader_renew (1s)",
            ),
            (
                &[("leader_ttl", "4s"), ("leader_margin", "3s")],
                &[("leader_ttl", "5s"), ("leader_margin", "3s")],
                "leader_ttl (4s) must be at least 2 × leader_renew (1s) + leader_margin (3s), or a leader would stop acting between two renewals",
            ),
            (
                &[("leader_stale", "2s")],
                &[("leader_stale", "3s")],
                "leader_stale (2s) must be at least three times leader_tick (1s), or the term of a healthy leader would be ended",
            ),
            (
                &[("heartbeat_ttl", "2s")],
                &[("heartbeat_ttl", "3s")],
                "heartbeat_ttl (2s) must be at least three times heartbeat_interval (1s)",
            ),
            (
                &[("reassign_after", "1999ms")],
                &[("reassign_after", "2s")],
                "reassign_after (1999ms) must be at least twice leader_tick (1s), or the leader would reassign runs before they can start",
            ),
            (
                &[("lease_renew", "8s"), ("outage_tolerance", "10s")],
                &[("lease_renew", "7500ms"), ("outage_tolerance", "10s")],
                "lease_ttl (30s) must be at least four times lease_renew (8s)",
            ),
            (
                &[("outage_tolerance", "18s")],
                &[("outage_tolerance", "17s")],
                "2/3 × lease_ttl (30s) must be at least outage_tolerance (18s) + lease_renew (3s), because a worker that cannot renew a lease sends SIGTERM after 2/3 × lease_ttl",
            ),
            (
                &[("kill_margin", "10s")],
                &[("kill_margin", "9s")],
                "lease_ttl (30s) - kill_margin (10s) must be more than 2/3 × lease_ttl, because a worker that cannot renew a lease sends SIGTERM after 2/3 × lease_ttl and SIGKILL after lease_ttl - kill_margin",
            ),
            (
                &[("continuation_retry_count", "16"), ("continuation_retry_interval", "1s")],
                &[("continuation_retry_count", "15"), ("continuation_retry_interval", "1s")],
                "continuation_retry_count (16) times continuation_retry_interval (1s) must be at most half of lease_ttl (30s)",
            ),
            (
                &[("skip_late_after", "34s")],
                &[("skip_late_after", "35s")],
                "skip_late_after (34s) must be at least assign_ahead (30s) plus leader_ttl (5s), or runs would be skipped when the leader changes",
            ),
            (
                &[("retry_backoff", "16m")],
                &[("retry_backoff", "15m")],
                "retry_backoff_cap (15m) must be at least retry_backoff (16m)",
            ),
        ];
        assert_eq!(table.len(), RULES.len(), "every rule needs a test case");
        for ((broken, valid, message), rule) in table.iter().zip(RULES) {
            assert_eq!(problems_of(broken), [*message]);
            assert_eq!(problems_of(valid), [""; 0], "{valid:?}");
            for name in rule.names() {
                assert!(message.contains(&format!("{name} (")), "the message lacks {name}");
            }
        }
    }

    #[test]
    fn the_rules_name_the_same_settings_in_both_languages() {
        for rule in RULES {
            for name in rule.names() {
                assert!(
                    Settings::default().find_value_text(name).is_some(),
                    "{name} is not a setting"
                );
                assert!(
                    rule.japanese.contains(&format!("{{{name}}}")),
                    "the Japanese rule lacks {name}"
                );
            }
        }
        let problems = Settings::default().with_changes(&[("heartbeat_ttl", "2s")]).unwrap_err();
        let message = problems[0].message(Language::Japanese);
        assert_eq!(
            message,
            "heartbeat_ttl (2s) は heartbeat_interval (1s) の3倍以上でなければならない"
        );
    }
}
