//! What a worker shows of itself, as the fields of a hash.

use tasuki::node::coordination::coordinate::Presence;

/// The fields. What is not there has none.
pub(super) fn write(presence: &Presence) -> Vec<(&'static str, String)> {
    let runs: Vec<String> = presence.runs.iter().map(ToString::to_string).collect();
    let mut fields = vec![
        ("node", presence.node.to_string()),
        ("pid", presence.pid.to_string()),
        ("role", presence.role.as_str().to_owned()),
        ("load", presence.load.to_string()),
        ("runs", runs.join(" ")),
        ("detached", u8::from(presence.detached).to_string()),
    ];
    fields.extend(presence.address.clone().map(|address| ("address", address)));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    use tasuki::node::coordination::coordinate::Role;
    use tasuki_core::{RunId, WorkerId};

    #[test]
    fn what_is_not_there_has_no_field() {
        let mut presence = Presence {
            worker: WorkerId::from_random(1),
            node: "東 {1}".parse().unwrap(),
            pid: u32::MAX,
            address: Some("10.0.0.1:7400".to_owned()),
            role: Role::Subleader,
            load: 3,
            runs: vec![RunId(1), RunId(i64::MAX)],
            detached: true,
        };
        let fields = |presence: &Presence| {
            let fields = write(presence).into_iter();
            fields.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
        };
        assert_eq!(
            fields(&presence),
            "node=東 {1},pid=4294967295,role=subleader,load=3,runs=1 9223372036854775807,\
             detached=1,address=10.0.0.1:7400"
        );
        presence.address = None;
        presence.runs.clear();
        presence.detached = false;
        assert_eq!(
            fields(&presence),
            "node=東 {1},pid=4294967295,role=subleader,load=3,runs=,detached=0"
        );
    }
}
