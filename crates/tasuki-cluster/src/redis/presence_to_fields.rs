//! The presence of a worker as the fields of a Redis hash, for monitoring. The names are those of the design document; a
//! worker can run many jobs at the same time, so `current_job_run_ids` is a list.

use tasuki::node::coordination::coordinator_trait::Presence;

/// Returns names and values of the fields. An absent value has no field. A script adds `last_heartbeat_ts`.
pub(super) fn fields(presence: &Presence) -> Vec<(&'static str, String)> {
    let runs: Vec<String> = presence.runs.iter().map(ToString::to_string).collect();
    let mut fields = vec![
        ("node_id", presence.node.to_string()),
        ("pid", presence.pid.to_string()),
        ("role", presence.role.as_str().to_owned()),
        ("load", presence.load.to_string()),
        ("current_job_run_ids", runs.join(" ")),
        ("detached", u8::from(presence.detached).to_string()),
    ];
    if let Some((host, port)) =
        presence.address.as_deref().and_then(|address| address.rsplit_once(':'))
    {
        fields.extend([("grpc_host", host.to_owned()), ("grpc_port", port.to_owned())]);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    use tasuki::node::coordination::coordinator_trait::ClusterRole;
    use tasuki_core::{RunId, WorkerId};

    #[test]
    fn an_absent_value_has_no_field() {
        let mut presence = Presence {
            worker: WorkerId::from_random(1),
            node: "東 {1}".parse().unwrap(),
            pid: u32::MAX,
            address: Some("10.0.0.1:7400".to_owned()),
            role: ClusterRole::Subleader,
            load: 3,
            runs: vec![RunId(1), RunId(i64::MAX)],
            detached: true,
        };
        let text = |presence: &Presence| {
            let fields = fields(presence).into_iter();
            fields.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
        };
        assert_eq!(
            text(&presence),
            "node_id=東 {1},pid=4294967295,role=subleader,load=3,current_job_run_ids=1 9223372036854775807,\
             detached=1,grpc_host=10.0.0.1,grpc_port=7400"
        );
        presence.address = None;
        presence.runs.clear();
        presence.detached = false;
        assert_eq!(
            text(&presence),
            "node_id=東 {1},pid=4294967295,role=subleader,load=3,current_job_run_ids=,detached=0"
        );
    }
}
