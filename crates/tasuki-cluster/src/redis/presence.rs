//! What a worker shows of itself, as the fields of a hash.

use std::collections::HashMap;
use std::str::FromStr;

use tasuki::node::coordinate::{Presence, Role};
use tasuki_core::{RunId, WorkerId};

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

/// Back from the fields. `None`: it vanished meanwhile, or shows nothing that could be understood.
pub(super) fn read(worker: WorkerId, fields: &HashMap<String, String>) -> Option<Presence> {
    fn number<T: FromStr>(fields: &HashMap<String, String>, name: &str) -> Option<T> {
        fields.get(name)?.parse().ok()
    }
    let role = fields.get("role").map_or("", String::as_str);
    let roles = [Role::Leader, Role::Subleader, Role::Worker];
    let runs = fields.get("runs").map_or("", String::as_str);
    Some(Presence {
        worker,
        node: number(fields, "node")?,
        pid: number(fields, "pid")?,
        address: fields.get("address").cloned(),
        // A newer tasuki may know more roles; whoever has one works.
        role: roles.into_iter().find(|known| known.as_str() == role).unwrap_or_default(),
        load: number(fields, "load")?,
        runs: runs.split(' ').filter_map(|run| run.parse::<RunId>().ok()).collect(),
        detached: fields.get("detached").is_some_and(|detached| detached == "1"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
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
        for _ in 0..2 {
            let fields = write(&presence).into_iter();
            let fields = fields.map(|(name, value)| (name.to_owned(), value)).collect();
            assert_eq!(read(presence.worker, &fields).as_ref(), Some(&presence));
            presence.address = None;
            presence.role = Role::Leader;
            presence.runs.clear();
            presence.detached = false;
        }
        assert_eq!(read(presence.worker, &HashMap::new()), None);
    }
}
