//! Workers: one row for each incarnation of a worker process.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};
use tasuki_core::{Epoch, NodeName, WorkerId};

use crate::audit::{self, AuditAction, AuditActor};
use crate::db::instant::timestamp_from_micros;
use crate::db::sql::{Dialect, Sql, sql};
use crate::db::{Row, Tx, params};
use crate::{Error, Store, Writer, to_uuid};

static REGISTER: Sql = sql!("worker/insert");
static HEARTBEAT: Sql = sql!("worker/heartbeat", "", "", ".mysql");
static FIND_HEARTBEAT_REPLY: Sql =
    sql!("worker/find_heartbeat_reply", ".mysql", ".mysql", ".mysql");
static FIND: Sql = sql!("worker/find");
static LOCK: Sql = sql!("worker/lock");
static LIST: Sql = sql!("worker/list");
static RESIZE: Sql = sql!("worker/resize");
static DRAIN: Sql = sql!("worker/drain");
static DETACH: Sql = sql!("worker/detach");
static MARK_DEAD: Sql = sql!("worker/mark_dead");
static MARK_GONE: Sql = sql!("worker/mark_gone");

/// A new incarnation of a worker, to be registered.
#[derive(Debug, Clone)]
pub struct NewWorker {
    /// Random id of the incarnation, never used before.
    pub id: WorkerId,
    /// Name of its node.
    pub node: NodeName,
    /// Process id.
    pub pid: Option<u32>,
    /// Address for RPC calls.
    pub address: Option<String>,
    /// Labels, as a JSON list. A job may require labels.
    pub labels: Option<String>,
    /// Maximum number of commands that run at the same time.
    pub slots: u32,
    /// Maximum number of functions that run at the same time.
    pub function_slots: u32,
}

/// A worker as stored in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRecord {
    /// Id of the incarnation.
    pub id: WorkerId,
    /// Name of its node.
    pub node: NodeName,
    /// Address for RPC calls.
    pub address: Option<String>,
    /// Maximum number of commands that run at the same time.
    pub slots: u32,
    /// Maximum number of functions that run at the same time.
    pub function_slots: u32,
    /// Labels. A job may require labels.
    pub labels: BTreeSet<String>,
    /// Last heartbeat.
    pub heartbeat_at: Timestamp,
    /// Since when it drains: it gets no new runs.
    pub draining_at: Option<Timestamp>,
    /// Since when it is detached: the leader considers it dead.
    pub detached_at: Option<Timestamp>,
    /// When the next incarnation on its node reported it dead.
    pub dead_at: Option<Timestamp>,
    /// When it stopped in an orderly way, or was removed as silent for too long.
    pub gone_at: Option<Timestamp>,
}

/// The response to a heartbeat: the worker's row, and whether there is anything else for the worker to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerHeartbeatReply {
    /// The worker's row.
    pub worker: WorkerRecord,
    /// The database's clock when the row was read.
    pub clock: Timestamp,
    /// Version of the current settings.
    pub settings_version: i64,
    /// Whether the worker has a lease.
    pub has_leases: bool,
    /// Epoch of the newest term.
    pub epoch: Epoch,
}

impl WorkerRecord {
    /// Whether it may get new runs.
    pub fn accepts_work(&self) -> bool {
        self.draining_at.is_none() && self.may_continue()
    }

    /// Whether it may continue its runs: it is neither detached nor dead nor gone.
    pub fn may_continue(&self) -> bool {
        self.detached_at.is_none() && self.dead_at.is_none() && self.gone_at.is_none()
    }

    /// The worker as shown in an audit entry.
    fn audit_json(&self) -> Value {
        json!({
            "node": self.node.as_str(),
            "draining": self.draining_at.is_some(),
            "detached": self.detached_at.is_some(),
        })
    }

    fn from_row(row: &Row) -> Result<Self, Error> {
        let instant = |name| row.opt_int(name)?.map(timestamp_from_micros).transpose();
        Ok(Self {
            id: WorkerId::from_bytes(row.uuid("id")?.into_bytes()),
            node: row.text("node")?.parse()?,
            address: row.opt_text("address")?,
            slots: row.int("slots")? as u32,
            function_slots: row.int("function_slots")? as u32,
            labels: crate::job::read_string_set(row, "labels")?,
            heartbeat_at: timestamp_from_micros(row.int("heartbeat_at")?)?,
            draining_at: instant("draining_at")?,
            detached_at: instant("detached_at")?,
            dead_at: instant("dead_at")?,
            gone_at: instant("gone_at")?,
        })
    }
}

impl WorkerHeartbeatReply {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            worker: WorkerRecord::from_row(row)?,
            clock: timestamp_from_micros(row.int("clock")?)?,
            settings_version: row.int("settings_version")?,
            has_leases: row.int("leases")? > 0,
            epoch: Epoch(row.int("epoch")?),
        })
    }
}

impl Store {
    /// Registers a new incarnation.
    pub async fn register_worker(&self, worker: &NewWorker) -> Result<(), Error> {
        let row = params! {
            id: to_uuid(worker.id.as_bytes()),
            node: worker.node.as_str(),
            pid: worker.pid.map(i64::from),
            address: worker.address.clone(),
            labels: worker.labels.clone(),
            slots: worker.slots,
            function_slots: worker.function_slots,
            version: env!("CARGO_PKG_VERSION"),
        };
        self.execute_on_worker(&REGISTER, row).await.map(drop)
    }

    /// Records a heartbeat and returns what the worker needs regularly. `None`: the worker was marked dead or gone,
    /// and must register again with another id.
    pub async fn record_heartbeat(
        &self,
        worker: WorkerId,
    ) -> Result<Option<WorkerHeartbeatReply>, Error> {
        let key = params! { id: to_uuid(worker.as_bytes()) };
        let rows = match self.db.dialect() {
            Dialect::Sqlite | Dialect::Postgres => self.db.write_returning(&HEARTBEAT, key).await?,
            Dialect::MySql => match self.execute_on_worker(&HEARTBEAT, key.clone()).await? {
                true => self.db.query(&FIND_HEARTBEAT_REPLY, key).await?,
                false => Vec::new(),
            },
        };
        rows.first().map(WorkerHeartbeatReply::from_row).transpose()
    }

    /// Changes the numbers of slots of a worker. `false`: the worker is dead or gone.
    pub async fn resize_worker(
        &self,
        worker: WorkerId,
        slots: u32,
        function_slots: u32,
    ) -> Result<bool, Error> {
        let row = params! {
            id: to_uuid(worker.as_bytes()),
            slots: slots,
            function_slots: function_slots,
        };
        self.execute_on_worker(&RESIZE, row).await
    }

    /// Drains a worker: it gets no new runs. `false`: it drains already, or is gone. If a worker drains itself, the
    /// actor is its own id.
    pub async fn drain_worker<'a>(
        &self,
        by: impl Into<AuditActor<'a>>,
        worker: WorkerId,
    ) -> Result<bool, Error> {
        self.drain_or_detach("drain", &DRAIN, Writer::Api, by.into(), worker, None).await
    }

    /// Detaches a worker: it gets no new runs, and runs that are assigned to it go to other workers. `false`: it is
    /// detached already, or gone. If the leader detaches, `writer` has its epoch, and the actor is its own id.
    pub async fn detach_worker<'a>(
        &self,
        writer: Writer,
        by: impl Into<AuditActor<'a>>,
        worker: WorkerId,
        reason: &str,
    ) -> Result<bool, Error> {
        self.drain_or_detach("detach", &DETACH, writer, by.into(), worker, Some(reason)).await
    }

    async fn drain_or_detach(
        &self,
        action: &'static str,
        sql: &Sql,
        writer: Writer,
        by: AuditActor<'_>,
        worker: WorkerId,
        reason: Option<&str>,
    ) -> Result<bool, Error> {
        let mut tx = self.begin_for(writer).await?;
        let change = params! {
            id: to_uuid(worker.as_bytes()),
            reason: reason.map(str::to_owned),
        };
        let before = lock_worker(&mut tx, worker).await?;
        let changed = tx.execute(sql, change).await? == 1;
        let (Some(before), true) = (before, changed) else {
            tx.rollback().await?;
            return Ok(false);
        };
        let after = find_worker_in_transaction(&mut tx, worker)
            .await?
            .ok_or_else(|| Error::broken("the row of a locked worker is missing"))?;
        let mut after_json = after.audit_json();
        after_json["reason"] = reason.into();
        if let Writer::Leader(epoch) = writer {
            after_json["epoch"] = epoch.0.into();
        }
        let object = format!("worker {worker}");
        let act = AuditAction {
            action,
            object,
            before: Some(before.audit_json()),
            after: Some(after_json),
        };
        audit::append_audit_entry(&mut tx, by, act).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Marks a worker as dead. Called by a newer incarnation on the same node, which has the lock of the data
    /// directory, has killed the old worker's processes and reported its results. `false`: it is not on this node, or
    /// is marked dead already.
    pub async fn mark_worker_dead(&self, worker: WorkerId, node: &NodeName) -> Result<bool, Error> {
        self.execute_on_worker(
            &MARK_DEAD,
            params! { id: to_uuid(worker.as_bytes()), node: node.as_str() },
        )
        .await
    }

    /// Marks a worker as gone after an orderly stop.
    pub async fn mark_worker_gone(&self, worker: WorkerId) -> Result<bool, Error> {
        self.execute_on_worker(&MARK_GONE, params! { id: to_uuid(worker.as_bytes()) }).await
    }

    /// Finds one worker.
    pub async fn find_worker(&self, worker: WorkerId) -> Result<Option<WorkerRecord>, Error> {
        let rows = self.db.query(&FIND, params! { id: to_uuid(worker.as_bytes()) }).await?;
        rows.first().map(WorkerRecord::from_row).transpose()
    }

    /// Lists the workers that are not gone.
    pub async fn list_workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        Ok(self.list_workers_with_clock().await?.0)
    }

    /// Lists the workers that are not gone, and returns the database's clock when they were read.
    pub async fn list_workers_with_clock(&self) -> Result<(Vec<WorkerRecord>, Timestamp), Error> {
        let rows = self.db.query(&LIST, params! {}).await?;
        let clock = match rows.first() {
            Some(row) => timestamp_from_micros(row.int("clock")?)?,
            None => self.read_clock().await?,
        };
        Ok((rows.iter().map(WorkerRecord::from_row).collect::<Result<_, _>>()?, clock))
    }

    async fn execute_on_worker(
        &self,
        sql: &Sql,
        params: crate::db::Params<'_>,
    ) -> Result<bool, Error> {
        Ok(self.db.execute(sql, params).await? == 1)
    }
}

/// Reads a worker and locks its row, while runs are assigned to it or started by it.
pub(crate) async fn lock_worker(
    tx: &mut Tx<'_>,
    worker: WorkerId,
) -> Result<Option<WorkerRecord>, Error> {
    let rows = tx.query(&LOCK, params! { id: to_uuid(worker.as_bytes()) }).await?;
    rows.first().map(WorkerRecord::from_row).transpose()
}

/// Reads a worker within this transaction.
pub(crate) async fn find_worker_in_transaction(
    tx: &mut Tx<'_>,
    worker: WorkerId,
) -> Result<Option<WorkerRecord>, Error> {
    let rows = tx.query(&FIND, params! { id: to_uuid(worker.as_bytes()) }).await?;
    rows.first().map(WorkerRecord::from_row).transpose()
}
