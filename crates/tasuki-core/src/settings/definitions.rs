//! The definitions of all settings.

use std::time::Duration;

use super::SettingsProblem;
use super::value::{SettingValue, SlotSetting};
use crate::InvalidInput;

/// The description of one setting for help texts and pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingDefinition {
    /// The name, the same in code, database, REST and CLI.
    pub name: &'static str,
    /// The default value.
    pub default: String,
    /// The minimum.
    pub min: String,
    /// The maximum.
    pub max: String,
    /// The format of a value.
    pub expected: &'static str,
    /// The help text in English: what the setting does and when to change it.
    pub english: &'static str,
    /// The help text in Japanese.
    pub japanese: &'static str,
}

/// Generates the struct `Settings`, its defaults and the access by name from one list.
macro_rules! settings {
    ($(
        $(#[doc = $english:literal])+
        $name:ident: $type:ty = $default:expr, $min:expr, $max:expr, $japanese:literal;
    )+) => {
        /// A valid set of settings: all rules between them hold. See [`Settings::with_changes`].
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Settings {
            $(pub(super) $name: $type,)+
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl Settings {
            /// The definitions of all settings, in the order of the reference page.
            pub fn definitions() -> Vec<SettingDefinition> {
                vec![$(SettingDefinition {
                    name: stringify!($name),
                    default: <$type as SettingValue>::format($default),
                    min: <$type as SettingValue>::format($min),
                    max: <$type as SettingValue>::format($max),
                    expected: <$type as SettingValue>::EXPECTED,
                    english: concat!($($english),+).trim_ascii(),
                    japanese: $japanese,
                },)+]
            }

            $(
                $(#[doc = $english])+
                pub fn $name(&self) -> $type {
                    self.$name
                }
            )+

            /// The value of the setting with this name as text; `None`: there is no such setting.
            pub fn get(&self, name: &str) -> Option<String> {
                match name {
                    $(stringify!($name) => Some(self.$name.format()),)+
                    _ => None,
                }
            }

            /// Changes one value within its limits. It does not check the rules between settings, so it
            /// is not public: callers use [`Settings::with_changes`].
            pub(super) fn set(&mut self, name: &str, typed: &str) -> Result<(), SettingsProblem> {
                match name {
                    $(stringify!($name) => {
                        self.$name = parse_in_limits(stringify!($name), typed, $min, $max)?;
                        Ok(())
                    })+
                    _ => Err(SettingsProblem::unknown(name)),
                }
            }
        }
    };
}

fn parse_in_limits<V: SettingValue>(
    name: &'static str,
    typed: &str,
    min: V,
    max: V,
) -> Result<V, SettingsProblem> {
    let fits = |value: &V| value.is_unlimited() || (min <= *value && *value <= max);
    V::parse(typed).filter(fits).ok_or_else(|| {
        let expected = match (min.format(), max.format()) {
            (min, max) if min == "false" && max == "true" => V::EXPECTED.to_owned(),
            (min, max) => format!("{}, from {min} to {max}", V::EXPECTED),
        };
        SettingsProblem::Value(InvalidInput::with_value(name, typed, expected))
    })
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 86_400)
}

settings! {
    /// Interval at which the leader plans. New runs and events trigger planning earlier, so this mainly
    /// sets the frequency of maintenance and has little effect on punctuality.
    leader_tick: Duration = s(1), ms(10), s(60),
        "リーダーが計画処理を行う間隔。新しい実行やイベントがあれば間隔を待たずに計画するため、この値は主に保守処理の頻度を決め、開始の遅れにはほとんど影響しない。";
    /// How long before its planned time a run is created and assigned to a worker. The worker then
    /// starts it with its own timer. With a longer time, runs start on time even if a change of leader
    /// takes longer.
    assign_ahead: Duration = s(30), ms(0), s(3_600),
        "予定時刻のどれだけ前に実行を作成してワーカーに割り当てるか。ワーカーは自分のタイマーで実行を開始する。長いほどリーダー交代の影響を受けにくい。";
    /// Interval at which the leader renews its lease.
    leader_renew: Duration = s(1), ms(10), s(60),
        "リーダーが自分のリースを更新する間隔。";
    /// How long the leader's lease is valid without renewal. A shorter time detects a dead leader
    /// earlier; a longer time tolerates slow networks.
    leader_ttl: Duration = s(5), ms(30), s(300),
        "リーダーのリースが更新なしで有効な時間。短いほどリーダーの停止を早く検知でき、長いほどネットワークの遅延に強い。";
    /// If the leader cannot renew its lease, it stops acting this long before the lease ends.
    leader_margin: Duration = s(1), ms(0), s(60),
        "リーダーがリースを更新できないとき、リース終了のどれだけ前に動作を止めるか。";
    /// Maximum age of the leader's last heartbeat. If it is older, subleaders call the leader, and end its
    /// term if it does not answer.
    leader_stale: Duration = s(5), ms(30), s(300),
        "リーダーの最後のハートビートがこれより古いと、サブリーダーがリーダーを呼び出し、応答がなければその任期を終わらせる。";
    /// Interval at which a subleader reads the age of the leader's heartbeat.
    subleader_check: Duration = s(1), ms(10), s(60),
        "サブリーダーが、リーダーの最後のハートビートからの経過時間を調べる間隔。";
    /// Interval at which a worker sends its heartbeat.
    heartbeat_interval: Duration = s(1), ms(10), s(60),
        "ワーカーがハートビートを送る間隔。";
    /// Maximum age of a worker's heartbeat. If it is older, the worker gets no new runs.
    heartbeat_ttl: Duration = s(5), ms(30), s(300),
        "ハートビートがこれより古いワーカーには新しい実行を割り当てない。";
    /// Additional time after heartbeat_ttl. A worker that still sends no heartbeat is then detached by the
    /// leader.
    worker_detach_grace: Duration = s(5), ms(0), s(600),
        "heartbeat_ttl を過ぎてもハートビートがないワーカーを、リーダーが切り離すまでの猶予。";
    /// An assigned run that has not started this long after its planned time is assigned to another
    /// worker.
    reassign_after: Duration = s(15), ms(20), s(3_600),
        "割り当て済みの実行が予定時刻を過ぎても開始されないとき、別のワーカーに割り当てるまでの時間。";
    /// How many times a run may be assigned without being started. After that it becomes EXPIRED.
    max_releases: u32 = 20, 1, 10_000,
        "実行が開始されないまま割り当てを繰り返せる回数。これに達すると EXPIRED になる。";
    /// Interval at which a worker renews the leases of its runs.
    lease_renew: Duration = s(3), ms(10), s(60),
        "ワーカーが自分の実行のリースを更新する間隔。";
    /// How long the lease of a run is valid without renewal. The runs of a lost node are recovered
    /// after this time plus steal_grace.
    lease_ttl: Duration = s(30), ms(40), s(3_600),
        "実行のリースが更新なしで有効な時間。失われたノードの実行は、この時間に steal_grace を加えた時間の後に回収される。";
    /// How long the database may be unavailable before running processes are stopped.
    outage_tolerance: Duration = s(15), ms(0), s(3_600),
        "データベースに接続できなくても、この時間が過ぎるまでは実行中のプロセスを止めない。";
    /// If a worker cannot renew a lease, it sends SIGKILL to the running processes this long before the
    /// lease ends.
    kill_margin: Duration = s(3), ms(1), s(600),
        "リースを更新できないとき、リース終了のどれだけ前に実行中のプロセスへ SIGKILL を送るか。";
    /// Time between the end of a lease and the recovery of its runs.
    steal_grace: Duration = s(3), ms(0), s(600),
        "リースが切れてから実行を回収するまでの猶予。";
    /// Maximum number of commands that a worker runs at the same time.
    max_jobs_per_worker: SlotSetting = SlotSetting::Auto, SlotSetting::Fixed(1), SlotSetting::Fixed(10_000),
        "1つのワーカーが同時に実行するコマンドの最大数。";
    /// Maximum number of functions of the default queue that a worker runs at the same time.
    function_slots: u32 = 256, 1, 100_000,
        "1つのワーカーが同時に実行する、既定のキューの関数の最大数。";
    /// How many times a detached worker requests permission to continue its runs.
    continuation_retry_count: u32 = 3, 1, 1_000,
        "切り離されたワーカーが、実行を続ける許可を求める回数。";
    /// Interval at which a detached worker requests permission to continue its runs.
    continuation_retry_interval: Duration = ms(300), ms(1), s(60),
        "切り離されたワーカーが、実行を続ける許可を求める間隔。";
    /// How late a scheduled run may start. A later run is SKIPPED, so that a cluster that recovers
    /// from an outage is not flooded. A job can choose another misfire policy.
    skip_late_after: Duration = s(300), ms(30), days(366),
        "予定された実行の開始がこれより遅れると SKIPPED になる。障害の復旧直後に大量の実行が一斉に始まるのを防ぐ。ジョブごとに別のミスファイア方針を選べる。";
    /// How many times a failed command is retried, if its job does not set a number. The default is
    /// no retry, because it may be unsafe to run a script twice.
    max_retries_command: u32 = 0, 0, 1_000,
        "失敗したコマンドを再試行する回数（ジョブごとに変更できる）。スクリプトを2回実行すると問題が起きることがあるため、既定では再試行しない。";
    /// How many times a failed function is retried, if its job does not set a number.
    max_retries_function: u32 = 3, 0, 1_000,
        "失敗した関数を再試行する回数（ジョブごとに変更できる）。";
    /// Delay before the first retry. Each further delay is twice the previous one.
    retry_backoff: Duration = s(30), ms(0), days(7),
        "最初の再試行までの待ち時間。以後は毎回2倍になる。";
    /// Maximum delay before a retry.
    retry_backoff_cap: Duration = s(900), ms(0), days(30),
        "再試行までの待ち時間の上限。";
    /// Each delay is shortened by a random share of up to this percentage, so that runs that failed at
    /// the same time are not retried at the same time.
    retry_jitter_percent: u32 = 0, 0, 100,
        "再試行の待ち時間を、最大でこの割合（%）までランダムに短くする。同時に失敗した実行が同時に再試行されるのを防ぐ。";
    /// Maximum run time of one attempt, if its job does not set one. A longer attempt is stopped as
    /// TIMED_OUT.
    timeout: Duration = s(1_800), ms(10), days(366),
        "1回の試行の最大実行時間（ジョブごとに変更できる）。超えると TIMED_OUT になる。";
    /// How long an attempt may run without output or heartbeat before it is stopped with
    /// HEARTBEAT_TIMEOUT, if its job does not set a time.
    heartbeat_timeout: Option<Duration> = None, Some(ms(10)), Some(days(366)),
        "試行がこの時間、出力もハートビートもないと HEARTBEAT_TIMEOUT として停止する（ジョブごとに変更できる）。";
    /// The heartbeat timeout of a handler that has reported progress at least once. It replaces
    /// heartbeat_timeout for such an attempt, if its job does not set a time.
    progress_heartbeat_timeout: Option<Duration> = Some(s(300)), Some(ms(10)), Some(days(366)),
        "一度でも進捗を報告したハンドラーに対して heartbeat_timeout の代わりに使う時間（ジョブごとに変更できる）。";
    /// Time between SIGTERM and SIGKILL when a process is stopped.
    stop_grace: Duration = s(10), ms(0), s(3_600),
        "プロセスを停止するとき、SIGTERM を送ってから SIGKILL を送るまでの猶予。";
    /// Interval at which the leader searches for lost runs.
    recovery_interval: Duration = s(5), ms(10), s(3_600),
        "リーダーが失われた実行を探す間隔。";
    /// Whether lost runs are recovered. Turn it off only to preserve the state of a broken cluster
    /// for investigation.
    recovery_enabled: bool = true, false, true,
        "失われた実行を回収するかどうか。障害を調査するためにクラスターの状態を保ちたいときだけ無効にする。";
    /// How many days the log text stays in the database. After that it is moved to the archive.
    log_retention_days_db: u32 = 7, 0, 36_500,
        "ログの本文をデータベースに保持する日数。この日数を過ぎるとアーカイブに移動する。";
}
