//! The wires between all: nodes, the database and Redis. What is cut is said in the words of a network: from whom
//! to whom nothing arrives, whoever dialled.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::wire::{Door, Flow, Way, Wire};

/// An end of a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// A node, by its place among the nodes.
    Node(usize),
    /// The database.
    Database,
    /// Redis.
    Redis,
}

/// How nodes come to Redis.
pub(crate) enum ToRedis {
    /// There is none.
    None,
    /// Through a wire to this port.
    Port(u16),
    /// Through a wire to these ports. It tells nodes by itself where it is, and that is the other one of each.
    Announced(Vec<(u16, u16)>),
    /// Past all wires.
    Direct,
}

/// All wires of a cluster.
pub struct Net {
    parties: Vec<Party>,
    /// By who dials whom.
    wires: BTreeMap<(Party, Party), Wire>,
    /// Where a node finds something.
    ports: BTreeMap<(Party, Party), u16>,
    /// Open as long as there is a net.
    doors: Vec<Door>,
    /// The process of each node that runs.
    processes: Arc<Mutex<BTreeMap<usize, u32>>>,
}

impl Net {
    /// Wires from so many nodes to each other, to the database, and to Redis if it can be put behind a wire.
    pub(crate) fn new(rpc: &[u16], database: u16, redis: &ToRedis) -> Self {
        let nodes = (0..rpc.len()).map(Party::Node);
        let mut net = Self::none();
        net.parties.extend(nodes.chain([Party::Database]));
        net.own_doors(Party::Database, database);
        match redis {
            ToRedis::None => {}
            ToRedis::Direct => net.parties.push(Party::Redis),
            ToRedis::Port(port) => {
                net.parties.push(Party::Redis);
                net.own_doors(Party::Redis, *port);
            }
            ToRedis::Announced(all) => {
                net.parties.push(Party::Redis);
                let callers = net.callers(Party::Redis);
                for &(port, announced) in all {
                    net.one_door(announced, port, callers.clone());
                }
            }
        }
        for (to, port) in rpc.iter().enumerate() {
            let to = Party::Node(to);
            let callers = net.callers(to);
            let open = net.one_door(0, *port, callers);
            for from in (0..rpc.len()).map(Party::Node) {
                net.ports.insert((from, to), open);
            }
        }
        net
    }

    /// No wires at all.
    pub(crate) fn none() -> Self {
        Self {
            parties: Vec::new(),
            wires: BTreeMap::new(),
            ports: BTreeMap::new(),
            doors: Vec::new(),
            processes: Arc::default(),
        }
    }

    fn nodes(&self) -> impl Iterator<Item = usize> {
        self.parties.iter().filter_map(|party| match party {
            Party::Node(node) => Some(*node),
            Party::Database | Party::Redis => None,
        })
    }

    /// A wire from every node to somebody else.
    fn callers(&mut self, to: Party) -> BTreeMap<usize, Wire> {
        let others = self.nodes().filter(|from| Party::Node(*from) != to);
        let callers: BTreeMap<usize, Wire> = others.map(|from| (from, Wire::new())).collect();
        for (from, wire) in &callers {
            self.wires.insert((Party::Node(*from), to), wire.clone());
        }
        callers
    }

    /// Every node finds a server behind a door of its own.
    fn own_doors(&mut self, server: Party, port: u16) {
        for (from, wire) in self.callers(server) {
            let door = Door::open(0, here(port), move |_| Some(wire.clone()));
            self.ports.insert((Party::Node(from), server), door.port);
            self.doors.push(door);
        }
    }

    /// All find it behind the same door, so who dials is asked of the kernel.
    fn one_door(&mut self, open: u16, port: u16, callers: BTreeMap<usize, Wire>) -> u16 {
        let processes = Arc::clone(&self.processes);
        let door = Door::open(open, here(port), move |dialler| {
            let processes = processes.lock().unwrap_or_else(PoisonError::into_inner).clone();
            callers.get(&owner(dialler, &processes)?).cloned()
        });
        let open = door.port;
        self.doors.push(door);
        open
    }

    /// Where a node finds somebody, if there is a wire.
    pub(crate) fn port(&self, from: usize, to: Party) -> Option<u16> {
        self.ports.get(&(Party::Node(from), to)).copied()
    }

    /// A node runs as this process from now on.
    pub(crate) fn runs(&self, node: usize, process: u32) {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).insert(node, process);
    }

    /// Everybody.
    pub fn parties(&self) -> impl Iterator<Item = Party> {
        self.parties.iter().copied()
    }

    /// Whether there is a wire between two.
    pub fn joins(&self, one: Party, other: Party) -> bool {
        self.wires.contains_key(&(one, other)) || self.wires.contains_key(&(other, one))
    }

    /// How what goes from one to another is from now on.
    pub fn set(&self, from: Party, to: Party, flow: Flow) {
        // A fault that breaks nothing would be borne by everybody.
        assert!(self.joins(from, to), "there is no wire between {from:?} and {to:?}");
        if let Some(wire) = self.wires.get(&(from, to)) {
            wire.set(Way::There, flow);
        }
        if let Some(wire) = self.wires.get(&(to, from)) {
            wire.set(Way::Back, flow);
        }
    }

    /// Nothing goes between two.
    pub fn cut(&self, one: Party, other: Party) {
        self.set(one, other, Flow::Held);
        self.set(other, one, Flow::Held);
    }

    /// Nothing goes between a node and all of these.
    pub fn cut_off(&self, node: usize, from: impl Fn(Party) -> bool) {
        let others = self.parties().filter(|party| *party != Party::Node(node) && from(*party));
        others.for_each(|other| self.cut(Party::Node(node), other));
    }

    /// Nothing goes between those on one side and all others.
    pub fn split(&self, side: &[Party]) {
        let is_node = |party: &Party| matches!(party, Party::Node(_));
        for one in side {
            for other in self.parties().filter(|party| !side.contains(party)) {
                // Servers have nothing to say to each other.
                if is_node(one) || is_node(&other) {
                    self.cut(*one, other);
                }
            }
        }
    }

    /// Everything is as it was.
    pub fn heal(&self) {
        for wire in self.wires.values() {
            wire.set(Way::There, Flow::Open);
            wire.set(Way::Back, Flow::Open);
        }
    }
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Which of these processes has the other end of a connection.
fn owner(dialler: SocketAddr, processes: &BTreeMap<usize, u32>) -> Option<usize> {
    let socket = format!("socket:[{}]", inode(dialler)?);
    let has = |process: &u32| {
        let open = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        open.filter_map(|one| fs::read_link(one.path()).ok())
            .any(|link| link.as_os_str() == socket.as_str())
    };
    processes.iter().find(|(_, process)| has(process)).map(|(node, _)| *node)
}

/// The kernel's number of a socket on this address.
fn inode(address: SocketAddr) -> Option<u64> {
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    // 127.0.0.1, as the kernel writes it on a little-endian machine or a big-endian one.
    let host = u32::from_ne_bytes([127, 0, 0, 1]);
    let local = format!("{host:08X}:{:04X}", address.port());
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let number =
            (words.next() == Some(local.as_str())).then(|| words.nth(7)?.parse().ok())??;
        // One that waits for its end has none, and another may have its port.
        (number != 0).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::place::until;

    /// Two nodes, and a server that is the database of both.
    fn net() -> (Net, TcpListener) {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let net = Net::new(&[1, 2], server.local_addr().unwrap().port(), &ToRedis::Direct);
        (net, server)
    }

    /// A connection of a node to the database: both ends.
    fn connected(net: &Net, node: usize, server: &TcpListener) -> (TcpStream, TcpStream) {
        let port = net.port(node, Party::Database).unwrap();
        let node = TcpStream::connect(("127.0.0.1", port)).unwrap();
        (node, server.accept().unwrap().0)
    }

    fn next(from: &mut TcpStream) -> u8 {
        let mut byte = [0];
        from.read_exact(&mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn what_is_held_arrives_when_it_is_healed() {
        let (net, server) = net();
        let (mut node, mut database) = connected(&net, 0, &server);
        net.set(Party::Node(0), Party::Database, Flow::Held);
        node.write_all(b"q").unwrap();
        // The other way is open.
        database.write_all(b"a").unwrap();
        assert_eq!(next(&mut node), b'a');
        database.set_nonblocking(true).unwrap();
        assert!(database.read(&mut [0]).is_err(), "nothing has come");
        database.set_nonblocking(false).unwrap();
        net.heal();
        assert_eq!(next(&mut database), b'q');
    }

    #[test]
    fn who_is_cut_off_does_not_hold_up_others() {
        let (net, server) = net();
        let (mut cut, mut held) = connected(&net, 0, &server);
        let (mut open, mut database) = connected(&net, 1, &server);
        net.cut(Party::Node(0), Party::Database);
        cut.write_all(b"q").unwrap();
        open.write_all(b"q").unwrap();
        assert_eq!(next(&mut database), b'q');
        database.write_all(b"a").unwrap();
        assert_eq!(next(&mut open), b'a');
        held.set_nonblocking(true).unwrap();
        assert!(held.read(&mut [0]).is_err(), "nothing has come");
    }

    #[test]
    fn that_somebody_is_gone_is_told_no_sooner_than_anything_else() {
        let (net, server) = net();
        let (mut node, database) = connected(&net, 0, &server);
        net.cut(Party::Node(0), Party::Database);
        drop(database);
        node.set_nonblocking(true).unwrap();
        assert!(node.read(&mut [0]).is_err(), "it looks as if it were there");
        node.set_nonblocking(false).unwrap();
        net.heal();
        assert_eq!(node.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    #[should_panic(expected = "there is no wire between Node(0) and Redis")]
    fn what_cannot_be_cut_is_not_taken_for_cut() {
        net().0.cut_off(0, |_| true);
    }

    /// Who is not there needs no wire.
    #[test]
    fn all_that_there_is_can_be_cut() {
        let net = Net::new(&[1, 2], 3, &ToRedis::None);
        net.cut_off(0, |_| true);
        net.split(&[Party::Node(1), Party::Database]);
    }

    #[test]
    fn no_door_is_open_when_the_net_is_gone() {
        let (net, server) = net();
        let (mut node, _database) = connected(&net, 0, &server);
        net.cut(Party::Node(0), Party::Database);
        let port = net.port(0, Party::Database).unwrap();
        drop(net);
        until("nobody listens", || TcpStream::connect(("127.0.0.1", port)).err());
        assert_eq!(node.read(&mut [0]).unwrap_or(0), 0, "its connection is gone, too");
    }

    #[test]
    fn the_kernel_says_who_dialled() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let dialler = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let from = server.accept().unwrap().1;
        let processes = BTreeMap::from([(3, 1), (4, std::process::id())]);
        assert_eq!(owner(from, &processes), Some(4));
        assert_eq!(owner(from, &BTreeMap::from([(3, 1)])), None);
        drop(dialler);
    }
}
