//! What a node costs that has nothing to do. A measurement, for whoever asks:
//!
//! `cargo nextest run --release -p tasuki --run-ignored only idle --no-capture`

use std::time::Duration;

use tasuki::Functions;

use crate::place::Place;

const LONG: Duration = Duration::from_secs(20);

/// The CPU time of all threads of this process.
fn cpu() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let nanos = threads.map(|thread| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("schedstat"));
        let stat = stat.unwrap_or_default();
        stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
    });
    Duration::from_nanos(nanos.sum())
}

impl Place {
    /// Definitions that fire tomorrow, made as no user could: at once.
    async fn definitions(&self, count: u32) {
        let script = format!(
            "with recursive n(n) as (select 1 union all select n + 1 from n where n < {count})
             insert into tasuki_job (name, trigger_type, schedule_type, schedule_value, zone, created_at, updated_at)
             select 'job ' || n, 'time', 'daily_at', '04:00', 'UTC', 0, 0 from n;
             insert into tasuki_job_version (job_id, version, kind, spec, lane, concurrency, max_attempts, max_releases,
                 backoff_us, backoff_cap_us, created_at)
             select id, 1, 'command', '{{\"command\": [\"true\"]}}', '', 'forbid', 1, 20, 0, 0, 0 from tasuki_job;
             insert into tasuki_cursor (job_id, next_fire)
             select id, cast(unixepoch('subsec') * 1000000 as integer) + 86400000000 from tasuki_job;"
        );
        self.store.script(&script).await.unwrap();
    }
}

/// The share of a core that an idle node with so many definitions takes, if its leader looks so often.
async fn share(definitions: u32, leader_tick: &str) -> f64 {
    let place = Place::new().await;
    place.set(&[("leader_tick", leader_tick)]).await;
    if definitions > 0 {
        place.definitions(definitions).await;
    }
    let mut functions = Functions::default();
    functions.add("work", |(), _| async { Ok(()) });
    let node = place.functions_only(functions).await;
    let leads = async || {
        let leader = place.store.leader().await.unwrap();
        (leader.holder == Some(node.worker_id())).then_some(())
    };
    place.until("it leads", leads).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = cpu();
    tokio::time::sleep(LONG).await;
    let share = (cpu() - before).as_secs_f64() / LONG.as_secs_f64();
    node.stop().await;
    place.store.close().await;
    std::fs::remove_dir_all(&place.data).unwrap();
    share
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn a_hundred_thousand_definitions_of_which_none_is_due() {
    let alone = share(0, "1s").await;
    println!("no definitions: {:.2} ms of CPU per second in all", alone * 1e3);
    let with = share(100_000, "1s").await;
    println!("100,000 definitions: {:.2} ms of CPU per second in all", with * 1e3);
    // The leader looks as often as its tick says and once more for each time it is woken; a hundred times
    // a second, what is not the leader's hardly counts.
    let busy = share(100_000, "10ms").await;
    println!("one turn of the leader: {:.2} ms of CPU", (busy - with) * 1e3 / 99.0);
}
