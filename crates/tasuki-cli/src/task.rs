//! `tasuki task submit`: runs on request, one or many.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::output::Failure;
use crate::run::Waiting;
use crate::server::Server;
use crate::typed::{self, Arguments, From};
use crate::view::{Look, counted, items};

/// Work on request.
#[derive(Args)]
pub(crate) struct Task {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Submit(Submit),
}

/// What one call carries at most: the server takes 1,000 tasks and 8 MiB.
const MOST_TASKS: usize = 1_000;
const MOST_BYTES: usize = 7 << 20;

/// What a line of a file can say.
const FIELDS: [&str; 8] =
    ["job", "args", "scheduled_for", "expires_at", "scope", "idempotency_key", "queue", "priority"];

/// Submit a task: a run of a job with arguments of its own. Or many, from a file with one JSON
/// object per line
#[derive(Args)]
#[command(after_help = "\
Examples:
  tasuki task submit resize --arg image=42.png
  tasuki task submit resize --arg image=42.png --key resize-42 --wait
  tasuki task submit report --at 2h --expires 3h
  tasuki task submit resize --arg image=43.png --queue slow --priority high
  tasuki task submit --file tasks.jsonl
  seq 3 | jq -c '{args: {n: .}}' | tasuki task submit resize --file -

A line of a file:
  {\"job\": \"resize\", \"args\": {\"image\": \"42.png\"}, \"idempotency_key\": \"resize-42\"}
It may also have scheduled_for, expires_at, queue, priority and scope ({\"kind\": \"tenant\",
\"id\": \"42\"}). Lines are sent in batches of 1,000; give them keys if you may have to send the file
again.")]
struct Submit {
    /// The job; with --file the one for lines that name none
    #[arg(required_unless_present = "file")]
    job: Option<String>,
    /// Tasks, one JSON object per line; - is stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["one", "all", "at", "expires", "scope", "key", "queue", "priority", "wait", "follow", "timeout"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    arguments: Arguments,
    /// Not before this: an instant, or a duration from now [default: now]
    #[arg(long, value_name = "WHEN")]
    at: Option<String>,
    /// Not after this: an instant, or a duration from now
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
    /// What it runs for, such as tenant/42
    #[arg(long, value_name = "KIND/ID")]
    scope: Option<String>,
    /// The same key twice makes one run
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Use the slots of this queue, whatever the job says; only for functions
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Its head start before others that wait: lowest, low, normal, high, highest; only for functions
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<String>,
    #[command(flatten)]
    waiting: Waiting,
}

impl Task {
    pub(crate) fn run(&self, now: Timestamp) -> Result<String, Failure> {
        let Verb::Submit(submit) = &self.verb;
        self.server.ask(now, async |client, look| match &submit.file {
            None => submit.one(client, look, now).await,
            Some(file) => submit.many(client, look, &typed::file(file)?).await,
        })
    }
}

impl Submit {
    async fn one(&self, client: &Client, look: &Look, now: Timestamp) -> Result<String, Failure> {
        self.waiting.check()?;
        let mut body = json!({ "job": self.job });
        if let Some(args) = self.arguments.read()? {
            body["args"] = args;
        }
        for (flag, name, typed) in
            [("--at", "scheduled_for", &self.at), ("--expires", "expires_at", &self.expires)]
        {
            if let Some(instant) = typed::instant_if(flag, typed.as_deref(), From::Ahead, now)? {
                body[name] = json!(instant);
            }
        }
        if let Some(scope) = &self.scope {
            body["scope"] = typed::scope(scope)?;
        }
        for (name, typed) in [("queue", &self.queue), ("priority", &self.priority)] {
            if let Some(typed) = typed {
                body[name] = json!(typed);
            }
        }
        let call = client.post("/tasks").body(body).idempotency_key(self.key.as_deref());
        let answer = call.send().await?;
        self.waiting.after(client, look, answer).await
    }

    /// All lines are read and looked at before the first is sent.
    async fn many(&self, client: &Client, look: &Look, text: &str) -> Result<String, Failure> {
        let tasks = self.read(text)?;
        let mut made: Vec<Value> = Vec::new();
        for batch in batches(&tasks) {
            let body = json!({ "tasks": batch });
            let answer = client.post("/tasks/batch").body(body).send().await;
            match answer {
                Ok(answer) => made.extend_from_slice(items(&answer.body, "items")),
                Err(failure) if made.is_empty() => return Err(failure),
                Err(failure) => {
                    let told = summary(look, &made);
                    eprintln!("{} submitted before this:", counted(made.len(), "task"));
                    return Err(failure.after(told));
                }
            }
        }
        Ok(summary(look, &made))
    }

    fn read(&self, text: &str) -> Result<Vec<Value>, Failure> {
        let mut tasks = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim().is_empty() {
                continue;
            }
            let refuse = |why: String| Failure::bad_usage(format!("line {number}: {why}"));
            let mut task: Map<String, Value> = serde_json::from_str(line)
                .map_err(|error| refuse(format!("not a JSON object: {error}")))?;
            if let Some(name) = task.keys().find(|name| !FIELDS.contains(&name.as_str())) {
                let known = FIELDS.join(", ");
                return Err(refuse(format!("{name}: unknown field, expected one of {known}")));
            }
            if !task.contains_key("job") {
                let job = self.job.as_ref().ok_or_else(|| refuse("job: missing".to_owned()))?;
                task.insert("job".to_owned(), json!(job));
            }
            tasks.push(Value::Object(task));
        }
        match tasks.is_empty() {
            true => Err(Failure::bad_usage("the file holds no tasks")),
            false => Ok(tasks),
        }
    }
}

/// Consecutive tasks, as many as one call carries.
fn batches(tasks: &[Value]) -> Vec<&[Value]> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, task) in tasks.iter().enumerate() {
        let length = task.to_string().len() + 1;
        if index > start && (index - start == MOST_TASKS || bytes + length > MOST_BYTES) {
            batches.push(&tasks[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += length;
    }
    batches.push(&tasks[start..]);
    batches
}

fn summary(look: &Look, made: &[Value]) -> String {
    look.answer(&json!({ "items": made }), |_, _| {
        let existed = made.iter().filter(|one| one["existed"] == true).count();
        let id = |one: Option<&Value>| one.map_or(String::new(), |one| one["id"].to_string());
        let ids = match made.len() {
            1 => format!("run {}", id(made.first())),
            _ => format!("runs {} to {}", id(made.first()), id(made.last())),
        };
        match existed {
            0 => format!("{} submitted: {ids}\n", counted(made.len(), "task")),
            existed => format!(
                "{} submitted: {ids}; {existed} existed before\n",
                counted(made.len(), "task")
            ),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_full_and_lose_nothing() {
        let small: Vec<Value> = (0..2_500).map(|n| json!({ "n": n })).collect();
        assert_eq!(
            batches(&small).iter().map(|one| one.len()).collect::<Vec<_>>(),
            [1_000, 1_000, 500]
        );
        let large: Vec<Value> = (0..5).map(|_| json!("x".repeat(3 << 20))).collect();
        assert_eq!(batches(&large).iter().map(|one| one.len()).collect::<Vec<_>>(), [2, 2, 1]);
    }
}
