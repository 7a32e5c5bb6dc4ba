//! The proxies between the nodes, the database and Redis. Faults name the sender and the receiver of the data,
//! regardless of which of them opened the connection.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::proxy::{LinkState, ProxyLink, ProxyListener, TrafficDirection};

/// An end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkEndpoint {
    /// A node, by its index.
    Node(usize),
    /// The database.
    Database,
    /// Redis.
    Redis,
}

/// How nodes reach Redis.
pub(crate) enum RedisRoute {
    /// There is no Redis.
    None,
    /// Through a proxy to this port.
    Port(u16),
    /// Through proxies to these servers: pairs of the server's real port and the port that it announces to clients,
    /// on which the proxy listens.
    Announced(Vec<(u16, u16)>),
    /// Directly, without a proxy.
    Direct,
}

/// All proxies of a cluster.
pub struct ProxyNetwork {
    endpoints: Vec<NetworkEndpoint>,
    /// Links by (client, server).
    links: BTreeMap<(NetworkEndpoint, NetworkEndpoint), ProxyLink>,
    /// Proxy ports by (node, server): where the node connects to reach the server.
    ports: BTreeMap<(NetworkEndpoint, NetworkEndpoint), u16>,
    /// The listeners; they close when the network is dropped.
    listeners: Vec<ProxyListener>,
    /// Process ids of the running nodes, by node index.
    processes: Arc<Mutex<BTreeMap<usize, u32>>>,
}

impl ProxyNetwork {
    /// Creates proxies between the nodes (which listen on the ports `rpc`), to the database, and to Redis if it can
    /// have one.
    pub(crate) fn new(rpc: &[u16], database: u16, redis: &RedisRoute) -> Self {
        let nodes = (0..rpc.len()).map(NetworkEndpoint::Node);
        let mut network = Self::without_links();
        network.endpoints.extend(nodes.chain([NetworkEndpoint::Database]));
        network.add_listener_for_each_node(NetworkEndpoint::Database, database);
        match redis {
            RedisRoute::None => {}
            RedisRoute::Direct => network.endpoints.push(NetworkEndpoint::Redis),
            RedisRoute::Port(port) => {
                network.endpoints.push(NetworkEndpoint::Redis);
                network.add_listener_for_each_node(NetworkEndpoint::Redis, *port);
            }
            RedisRoute::Announced(all) => {
                network.endpoints.push(NetworkEndpoint::Redis);
                let links = network.add_links_to(NetworkEndpoint::Redis);
                for &(port, announced) in all {
                    network.add_shared_listener(announced, port, links.clone());
                }
            }
        }
        for (to, port) in rpc.iter().enumerate() {
            let to = NetworkEndpoint::Node(to);
            let links = network.add_links_to(to);
            let open = network.add_shared_listener(0, *port, links);
            for from in (0..rpc.len()).map(NetworkEndpoint::Node) {
                network.ports.insert((from, to), open);
            }
        }
        network
    }

    /// A network without proxies.
    pub(crate) fn without_links() -> Self {
        Self {
            endpoints: Vec::new(),
            links: BTreeMap::new(),
            ports: BTreeMap::new(),
            listeners: Vec::new(),
            processes: Arc::default(),
        }
    }

    fn nodes(&self) -> impl Iterator<Item = usize> {
        self.endpoints.iter().filter_map(|endpoint| match endpoint {
            NetworkEndpoint::Node(node) => Some(*node),
            NetworkEndpoint::Database | NetworkEndpoint::Redis => None,
        })
    }

    /// Creates a link from every other node to `to`. Returns the links by node index.
    fn add_links_to(&mut self, to: NetworkEndpoint) -> BTreeMap<usize, ProxyLink> {
        let others = self.nodes().filter(|from| NetworkEndpoint::Node(*from) != to);
        let links: BTreeMap<usize, ProxyLink> =
            others.map(|from| (from, ProxyLink::new())).collect();
        for (from, link) in &links {
            self.links.insert((NetworkEndpoint::Node(*from), to), link.clone());
        }
        links
    }

    /// Opens a separate proxy port to the server for every node.
    fn add_listener_for_each_node(&mut self, server: NetworkEndpoint, port: u16) {
        for (from, link) in self.add_links_to(server) {
            let listener = ProxyListener::open(0, localhost(port), move |_| Some(link.clone()));
            self.ports.insert((NetworkEndpoint::Node(from), server), listener.port);
            self.listeners.push(listener);
        }
    }

    /// Opens one proxy port for all clients of a server. The owner of a connection, found in /proc, decides which
    /// link it uses.
    fn add_shared_listener(
        &mut self,
        open: u16,
        port: u16,
        links: BTreeMap<usize, ProxyLink>,
    ) -> u16 {
        let processes = Arc::clone(&self.processes);
        let listener = ProxyListener::open(open, localhost(port), move |client| {
            let processes = processes.lock().unwrap_or_else(PoisonError::into_inner).clone();
            links.get(&find_owner(client, &processes)?).cloned()
        });
        let open = listener.port;
        self.listeners.push(listener);
        open
    }

    /// The proxy port that a node uses to reach `to`, if there is a proxy.
    pub(crate) fn port(&self, from: usize, to: NetworkEndpoint) -> Option<u16> {
        self.ports.get(&(NetworkEndpoint::Node(from), to)).copied()
    }

    /// Sets the process id of a node.
    pub(crate) fn set_node_process(&self, node: usize, process: u32) {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).insert(node, process);
    }

    /// All nodes, the database, and Redis if there is one.
    pub fn endpoints(&self) -> impl Iterator<Item = NetworkEndpoint> {
        self.endpoints.iter().copied()
    }

    /// Whether there is a link between two endpoints, in any direction.
    pub fn has_link(&self, one: NetworkEndpoint, other: NetworkEndpoint) -> bool {
        self.links.contains_key(&(one, other)) || self.links.contains_key(&(other, one))
    }

    /// Sets the link state for data from one endpoint to another. Panics if there is no link.
    pub fn set_link(&self, from: NetworkEndpoint, to: NetworkEndpoint, state: LinkState) {
        // Without this check a fault that affects nothing would seem to be tolerated.
        assert!(self.has_link(from, to), "there is no link between {from:?} and {to:?}");
        if let Some(link) = self.links.get(&(from, to)) {
            link.set(TrafficDirection::ToUpstream, state);
        }
        if let Some(link) = self.links.get(&(to, from)) {
            link.set(TrafficDirection::ToClient, state);
        }
    }

    /// Blocks all data between two endpoints.
    pub fn cut(&self, one: NetworkEndpoint, other: NetworkEndpoint) {
        self.set_link(one, other, LinkState::Blocked);
        self.set_link(other, one, LinkState::Blocked);
    }

    /// Blocks all data between a node and the selected endpoints.
    pub fn isolate(&self, node: usize, from: impl Fn(NetworkEndpoint) -> bool) {
        let others = self
            .endpoints()
            .filter(|endpoint| *endpoint != NetworkEndpoint::Node(node) && from(*endpoint));
        others.for_each(|other| self.cut(NetworkEndpoint::Node(node), other));
    }

    /// Blocks all data between the endpoints of one side and all other endpoints.
    pub fn partition(&self, side: &[NetworkEndpoint]) {
        let is_node = |endpoint: &NetworkEndpoint| matches!(endpoint, NetworkEndpoint::Node(_));
        for one in side {
            for other in self.endpoints().filter(|endpoint| !side.contains(endpoint)) {
                // The servers have no links to each other.
                if is_node(one) || is_node(&other) {
                    self.cut(*one, other);
                }
            }
        }
    }

    /// Opens all links again.
    pub fn heal(&self) {
        for link in self.links.values() {
            link.set(TrafficDirection::ToUpstream, LinkState::Open);
            link.set(TrafficDirection::ToClient, LinkState::Open);
        }
    }
}

fn localhost(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// The node whose process owns the client socket with this address.
fn find_owner(client: SocketAddr, processes: &BTreeMap<usize, u32>) -> Option<usize> {
    let socket = format!("socket:[{}]", find_inode(client)?);
    let has = |process: &u32| {
        let open = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        open.filter_map(|one| fs::read_link(one.path()).ok())
            .any(|link| link.as_os_str() == socket.as_str())
    };
    processes.iter().find(|(_, process)| has(process)).map(|(node, _)| *node)
}

/// The inode of the TCP socket with this local address, from /proc/net/tcp.
fn find_inode(address: SocketAddr) -> Option<u64> {
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    // 127.0.0.1, as the kernel writes it on a little-endian machine or a big-endian one.
    let host = u32::from_ne_bytes([127, 0, 0, 1]);
    let local = format!("{host:08X}:{:04X}", address.port());
    table.lines().find_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let number =
            (columns.next() == Some(local.as_str())).then(|| columns.nth(7)?.parse().ok())??;
        // A socket in TIME_WAIT has inode 0, and another socket may use its port.
        (number != 0).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::test_support::wait_until;

    /// A network of two nodes and a listener that acts as their database.
    fn test_network() -> (ProxyNetwork, TcpListener) {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let network =
            ProxyNetwork::new(&[1, 2], server.local_addr().unwrap().port(), &RedisRoute::Direct);
        (network, server)
    }

    /// Connects a node to the database. Returns both ends of the connection.
    fn connected(
        network: &ProxyNetwork,
        node: usize,
        server: &TcpListener,
    ) -> (TcpStream, TcpStream) {
        let port = network.port(node, NetworkEndpoint::Database).unwrap();
        let node = TcpStream::connect(("127.0.0.1", port)).unwrap();
        (node, server.accept().unwrap().0)
    }

    fn next(from: &mut TcpStream) -> u8 {
        let mut byte = [0];
        from.read_exact(&mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn blocked_data_arrives_after_healing() {
        let (network, server) = test_network();
        let (mut node, mut database) = connected(&network, 0, &server);
        network.set_link(NetworkEndpoint::Node(0), NetworkEndpoint::Database, LinkState::Blocked);
        node.write_all(b"q").unwrap();
        // The other direction is open.
        database.write_all(b"a").unwrap();
        assert_eq!(next(&mut node), b'a');
        database.set_nonblocking(true).unwrap();
        assert!(database.read(&mut [0]).is_err(), "no data has arrived");
        database.set_nonblocking(false).unwrap();
        network.heal();
        assert_eq!(next(&mut database), b'q');
    }

    #[test]
    fn a_blocked_node_does_not_block_others() {
        let (network, server) = test_network();
        let (mut cut, mut blocked_database) = connected(&network, 0, &server);
        let (mut open, mut database) = connected(&network, 1, &server);
        network.cut(NetworkEndpoint::Node(0), NetworkEndpoint::Database);
        cut.write_all(b"q").unwrap();
        open.write_all(b"q").unwrap();
        assert_eq!(next(&mut database), b'q');
        database.write_all(b"a").unwrap();
        assert_eq!(next(&mut open), b'a');
        blocked_database.set_nonblocking(true).unwrap();
        assert!(blocked_database.read(&mut [0]).is_err(), "no data has arrived");
    }

    #[test]
    fn the_end_of_a_connection_is_blocked_like_data() {
        let (network, server) = test_network();
        let (mut node, database) = connected(&network, 0, &server);
        network.cut(NetworkEndpoint::Node(0), NetworkEndpoint::Database);
        drop(database);
        node.set_nonblocking(true).unwrap();
        assert!(node.read(&mut [0]).is_err(), "the closed connection must still look open");
        node.set_nonblocking(false).unwrap();
        network.heal();
        assert_eq!(node.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    #[should_panic(expected = "there is no link between Node(0) and Redis")]
    fn blocking_a_missing_link_panics() {
        test_network().0.isolate(0, |_| true);
    }

    /// Without Redis in the cluster no link to Redis is required.
    #[test]
    fn all_existing_links_can_be_blocked() {
        let network = ProxyNetwork::new(&[1, 2], 3, &RedisRoute::None);
        network.isolate(0, |_| true);
        network.partition(&[NetworkEndpoint::Node(1), NetworkEndpoint::Database]);
    }

    #[test]
    fn proxy_ports_close_with_the_network() {
        let (network, server) = test_network();
        let (mut node, _database) = connected(&network, 0, &server);
        network.cut(NetworkEndpoint::Node(0), NetworkEndpoint::Database);
        let port = network.port(0, NetworkEndpoint::Database).unwrap();
        drop(network);
        wait_until("the proxy port is closed", || TcpStream::connect(("127.0.0.1", port)).err());
        assert_eq!(node.read(&mut [0]).unwrap_or(0), 0, "the connection is closed, too");
    }

    #[test]
    fn the_owner_of_a_connection_is_found() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let from = server.accept().unwrap().1;
        let processes = BTreeMap::from([(3, 1), (4, std::process::id())]);
        assert_eq!(find_owner(from, &processes), Some(4));
        assert_eq!(find_owner(from, &BTreeMap::from([(3, 1)])), None);
        drop(client);
    }
}
