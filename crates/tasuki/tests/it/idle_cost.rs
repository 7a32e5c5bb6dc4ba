//! CPU cost of an idle node. A measurement that runs only on request:
//!
//! `cargo nextest run --release -p tasuki --run-ignored only idle --no-capture`

use std::time::Duration;

use tasuki::HandlerRegistry;

use crate::node_fixture::NodeFixture;

const MEASURE_TIME: Duration = Duration::from_secs(20);

/// CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let nanos = threads.map(|thread| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("schedstat"));
        let stat = stat.unwrap_or_default();
        stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
    });
    Duration::from_nanos(nanos.sum())
}

impl NodeFixture {
    /// Inserts jobs that fire tomorrow, with one SQL script because the API would take too long.
    async fn insert_jobs(&self, count: u32) {
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
        self.store.execute_script(&script).await.unwrap();
    }
}

/// CPU share of a core that an idle node uses, with this number of jobs and this `leader_tick`.
async fn cpu_share(job_count: u32, leader_tick: &str) -> f64 {
    let fixture = NodeFixture::new().await;
    fixture.change_settings(&[("leader_tick", leader_tick)]).await;
    if job_count > 0 {
        fixture.insert_jobs(job_count).await;
    }
    let mut functions = HandlerRegistry::default();
    functions.register("work", |(), _| async { Ok(()) });
    let node = fixture.start_functions_only_node(functions).await;
    let is_leader = async || {
        let leader = fixture.store.find_leader().await.unwrap();
        (leader.holder == Some(node.worker_id())).then_some(())
    };
    fixture.wait_until("the node is leader", is_leader).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = cpu_time();
    tokio::time::sleep(MEASURE_TIME).await;
    let share = (cpu_time() - before).as_secs_f64() / MEASURE_TIME.as_secs_f64();
    node.stop().await;
    fixture.store.close().await;
    std::fs::remove_dir_all(&fixture.dir).unwrap();
    share
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn idle_cost_with_a_hundred_thousand_jobs() {
    let alone = cpu_share(0, "1s").await;
    println!("no jobs: {:.2} ms of CPU per second in all", alone * 1e3);
    let with = cpu_share(100_000, "1s").await;
    println!("100,000 jobs: {:.2} ms of CPU per second in all", with * 1e3);
    // The leader polls once per tick and once per wake-up. At a hundred ticks per second the other loops hardly count.
    let busy = cpu_share(100_000, "10ms").await;
    println!("one tick of the leader: {:.2} ms of CPU", (busy - with) * 1e3 / 99.0);
}
