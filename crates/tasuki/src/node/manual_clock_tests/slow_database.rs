//! Scenarios with slow database responses: a result is valid from the request on, not from the response on.

use super::super::{Config, Node};
use super::*;
use crate::HandlerRegistry;
use crate::operator::JobDraft;
use tasuki_store::{BoxFuture, Fault, FaultInjector, NewRun, PendingTask, Writer};

/// Database connection on which every response takes a fixed time of the test's clock.
pub(super) struct SlowDatabaseLink {
    clock: Arc<ManualClock>,
    response_micros: AtomicU64,
}

impl SlowDatabaseLink {
    pub(super) fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, response_micros: AtomicU64::new(0) }
    }
}

impl FaultInjector for SlowDatabaseLink {
    fn on_request(&self) -> BoxFuture<'_, Fault> {
        Box::pin(async { Fault::None })
    }

    fn on_response(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let takes = self.response_micros.load(Ordering::Relaxed);
            self.clock.0.fetch_add(takes, Ordering::Relaxed);
        })
    }
}

const SLOW_MICROS: u64 = 700_000;

impl Scenario {
    fn slow_down_database(&self) {
        self.database_link.response_micros.store(SLOW_MICROS, Ordering::Relaxed);
    }

    fn lease_deadline(&self) -> u64 {
        self.executor.lease_deadline.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn a_term_is_trusted_from_the_request_on_and_for_less_than_its_ttl() {
    let scenario = Scenario::starting_at("12:00:00").await;
    scenario.slow_down_database();
    let settings = scenario.settings().await;
    let trusted_for = (settings.leader_ttl() - settings.leader_margin()).as_micros() as u64;
    // The first call takes the leadership, the second renews it.
    for _ in 0..2 {
        assert!(scenario.leader.elect_or_renew(&settings).await.unwrap());
        let requested_at = scenario.clock.boottime() - SLOW_MICROS;
        let renew_at = requested_at + settings.leader_renew().as_micros() as u64;
        scenario.clock.0.store(requested_at + trusted_for - 1, Ordering::Relaxed);
        assert!(scenario.leader.active_epoch().is_some());
        scenario.clock.0.store(requested_at + trusted_for, Ordering::Relaxed);
        assert!(scenario.leader.active_epoch().is_none(), "the leader may no longer act");
        scenario.clock.0.store(renew_at, Ordering::Relaxed);
    }
    scenario.check_and_finish().await;
}

#[tokio::test]
async fn a_lease_deadline_counts_from_the_request() {
    for claimed in [true, false] {
        let scenario = Scenario::with_manual_completion("12:00:00").await;
        let job =
            scenario.create_job("job", &Scenario::definition(Trigger::Task, "", claimed)).await;
        scenario.run_leader().await;
        scenario.worker.heartbeat().await.unwrap();
        let run = NewRun::task(&job.newest);
        scenario.store.create_or_find_runs(Writer::Api, &[run]).await.unwrap();
        scenario.run_leader().await;
        let sigkill_after_last_renewal =
            scenario.settings().await.sigkill_after_last_renewal().as_micros() as u64;
        scenario.slow_down_database();
        let requested_at = scenario.clock.boottime();
        match claimed {
            true => drop(scenario.worker.claim_and_launch().await.unwrap()),
            false => drop(scenario.worker.start_due().await.unwrap()),
        }
        assert_eq!(scenario.take_launched().len(), 1);
        // A claim polls first; the lease counts from the second request.
        let requested_at = if claimed { requested_at + SLOW_MICROS } else { requested_at };
        assert_eq!(
            scenario.lease_deadline(),
            requested_at + sigkill_after_last_renewal,
            "claimed: {claimed}"
        );
        let requested_at = scenario.clock.boottime();
        scenario.worker.renew(true).await.unwrap();
        assert_eq!(
            scenario.lease_deadline(),
            requested_at + sigkill_after_last_renewal,
            "a renewal counts from its request, too"
        );
    }
}

#[tokio::test]
async fn the_first_task_of_a_declared_job_needs_one_statement() {
    for (declared, answers) in [(false, 2), (true, 1)] {
        let store = Store::open("sqlite::memory:", 1).await.unwrap();
        store.migrate().await.unwrap();
        let clock = Arc::new(ManualClock::default());
        let database_link = Arc::new(SlowDatabaseLink::new(Arc::clone(&clock)));
        let builder = Node::builder(
            Config::new("here".parse().unwrap()),
            store.with_fault_injector(database_link.clone()),
        );
        let builder = match declared {
            true => builder.handler(FUNCTION, |(): (), _| async { Ok(()) }),
            false => {
                let draft = JobDraft::new(WorkSpec::new(WorkAction::Function(FUNCTION.to_owned())));
                let operator = Operator::new(store.clone(), Wakeups::default());
                operator.create_job(&by(), FUNCTION, &draft).await.unwrap();
                let mut functions = HandlerRegistry::default();
                functions.register(FUNCTION, |(): (), _| async { Ok(()) });
                builder.functions(functions)
            }
        };
        let (node, _) = builder.assemble(Arc::clone(&clock) as Arc<dyn Clock>).await.unwrap();
        node.worker.claim_and_launch().await.unwrap();
        let job = store.find_job(&FUNCTION.parse().unwrap()).await.unwrap().expect("it was made");
        database_link.response_micros.store(SLOW_MICROS, Ordering::Relaxed);
        let task = [PendingTask::new(Arc::new(job.newest))];
        assert!(
            node.worker.submit_and_claim(&task).await.unwrap().is_some(),
            "nothing waits before it"
        );
        assert_eq!(clock.boottime() / SLOW_MICROS, answers, "declared: {declared}");
    }
}
