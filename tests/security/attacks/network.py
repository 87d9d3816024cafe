"""Attacks by network: the host's services, other machines, and kinds of sockets that no job needs."""

# ruff: noqa: E501 - most lines are whole programs

from functools import partial

from security.attacks.base import probe

_net = partial(probe, "network")
_UNREACHABLE = (
    "ECONNREFUSED",
    "ENETUNREACH",
    "EADDRNOTAVAIL",
    "EAFNOSUPPORT",
    "EPROTONOSUPPORT",
    "EHOSTUNREACH",
    "gaierror",
    "ESOCKTNOSUPPORT",
)
_CONNECT = """
        def connect(family, address, kind=socket.SOCK_STREAM):
            with socket.socket(family, kind) as handle:
                handle.settimeout(2)
                handle.connect(address)
                handle.send(b'from a job')
                return 'connected'
"""
_FAMILIES = {
    "ALG": 38,
    "BLUETOOTH": 31,
    "CAN": 29,
    "TIPC": 30,
    "XDP": 44,
    "RDS": 21,
    "X25": 9,
    "AX25": 3,
    "KEY": 15,
    "PPPOX": 24,
    "NFC": 39,
    "SMC": 43,
    "QIPCRTR": 42,
    "KCM": 41,
}

ATTACKS = [
    _net("services_on_the_host_s_loopback", f"{_CONNECT}\n        attempt('tcp', connect, socket.AF_INET, ('127.0.0.1', C['port']))", *_UNREACHABLE),
    _net("services_on_the_host_s_ipv6_loopback", f"{_CONNECT}\n        attempt('tcp', connect, socket.AF_INET6, ('::1', C['port']))", *_UNREACHABLE),
    _net("services_on_the_host_s_addresses", f"""{_CONNECT}
        for address in C['addresses']: attempt(address, connect, socket.AF_INET, (address, C['port']))""", *_UNREACHABLE),
    _net("datagrams_to_the_host", f"""{_CONNECT}
        for address in '127.0.0.1', *C['addresses'], '255.255.255.255', '224.0.0.1':
            attempt(address, connect, socket.AF_INET, (address, C['datagrams']), socket.SOCK_DGRAM)""", *_UNREACHABLE, "GOT 'connected'"),
    _net("metadata_of_the_cloud", f"""{_CONNECT}
        for address in '169.254.169.254', '169.254.170.2', '100.100.100.200': attempt(address, connect, socket.AF_INET, (address, 80))
        attempt('ipv6', connect, socket.AF_INET6, ('fd00:ec2::254', 80))""", *_UNREACHABLE),
    _net("names_by_dns", """
        attempt('name', socket.getaddrinfo, 'example.com', 80)
        query = b'\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\7example\\3com\\0\\0\\1\\0\\1'
        for server in '8.8.8.8', '1.1.1.1', '127.0.0.53', '10.0.0.2', '169.254.169.253':
            attempt(server, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(query, (server, 53)))""", *_UNREACHABLE, "GOT 29"),
    _net("other_machines", f"""{_CONNECT}
        for address in '192.0.2.1', '10.0.0.1', '172.17.0.1', '192.168.0.1': attempt(address, connect, socket.AF_INET, (address, 80))
        attempt('ipv6', connect, socket.AF_INET6, ('2001:db8::1', 80))""", *_UNREACHABLE),
    _net("abstract_unix_socket_of_the_host", f"{_CONNECT}\n        attempt('abstract', connect, socket.AF_UNIX, '\\0' + C['abstract'])", "ECONNREFUSED", "EINVAL"),
    _net("unix_socket_file_of_the_host", f"{_CONNECT}\n        attempt('file', connect, socket.AF_UNIX, C['socket'])", "ECONNREFUSED"),
    _net("abstract_unix_socket_of_a_neighbour", f"{_CONNECT}\n        attempt('abstract', connect, socket.AF_UNIX, '\\0' + C['neighbour'])", "ECONNREFUSED", "EINVAL", neighbour=True),
    _net("loopback_of_a_neighbour", f"{_CONNECT}\n        attempt('tcp', connect, socket.AF_INET, ('127.0.0.1', C['neighbour_port']))", "ECONNREFUSED", neighbour=True),
    _net("interfaces_of_the_host", """
        others = [name for _, name in socket.if_nameindex() if name not in ('lo', 'tunl0', 'sit0', 'ip6tnl0', 'gre0', 'gretap0', 'erspan0', 'ip_vti0', 'ip6_vti0', 'ip6gre0')]
        found['interfaces'] = f'GOT {others}' if others else 'nothing'
        attempt('bind to one', lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 25, b'eth0\\0'))""", "EINVAL", "ENOPROTOOPT", "GOT None"),
    _net("routes_and_addresses_by_netlink", """
        def ask(kind, body):
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as handle:
                handle.settimeout(2); handle.bind((0, 0))
                handle.send(struct.pack('=IHHII', 16 + len(body), kind, 5 | 0x400, 1, 0) + body)
                answer = handle.recv(65536)
                number = struct.unpack_from('=i', answer, 16)[0] if struct.unpack_from('=H', answer, 4)[0] == 2 else 0
                if number < 0: raise OSError(-number, 'netlink')
                return 'done'
        attempt('address', ask, 20, struct.pack('=BBBBI', 2, 24, 0, 0, 1) + struct.pack('=HH4s', 8, 2, bytes([10, 9, 9, 9])))
        attempt('link', ask, 16, struct.pack('=BBHiII', 0, 0, 0, 1, 0, 1))
        attempt('route', ask, 24, struct.pack('=BBBBBBBBI', 2, 0, 0, 0, 254, 4, 0, 1, 0) + struct.pack('=HHi', 8, 4, 1))
        import fcntl
        for name, number in dict(SIOCSIFADDR=0x8916, SIOCSIFFLAGS=0x8914, SIOCADDRT=0x890B).items():
            attempt(name, fcntl.ioctl, socket.socket(socket.AF_INET, socket.SOCK_DGRAM), number, struct.pack('16sHH4s16s', b'lo', 2, 0, bytes([10, 9, 9, 9]), b''))""", "EAFNOSUPPORT", "EOPNOTSUPP", "ENOTTY", "EINVAL"),
    _net("other_netlink_families", """
        for name, number in dict(audit=9, netfilter=12, kobject_uevent=15, generic=16, crypto=21, connector=11, sock_diag=4, selinux=7).items():
            attempt(name, socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, number)""", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT"),
    _net("raw_sockets", """
        for name, protocol in dict(icmp=1, tcp=6, any=255).items(): attempt(name, socket.socket, socket.AF_INET, socket.SOCK_RAW, protocol)
        attempt('ipv6', socket.socket, socket.AF_INET6, socket.SOCK_RAW, 58)""", "EPROTONOSUPPORT", "EAFNOSUPPORT", "ESOCKTNOSUPPORT"),
    _net("packet_sockets", """
        for kind in socket.SOCK_RAW, socket.SOCK_DGRAM: attempt(str(kind), socket.socket, 17, kind, socket.htons(3))""", "EAFNOSUPPORT", "ESOCKTNOSUPPORT"),
    _net("sockets_of_the_virtual_machine", """
        for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET: attempt(str(kind), socket.socket, 40, kind)""", "EAFNOSUPPORT", "ESOCKTNOSUPPORT"),
    *[_net(f"sockets_of_family_{name}", f"""
        for kind in 1, 2, 3, 5: attempt(str(kind), socket.socket, {number}, kind, {2 if name == "KEY" else 0})""", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EINVAL")
      for name, number in list(_FAMILIES.items())[:6]],
    _net("sockets_of_rare_families", f"""
        for name, number in {dict(list(_FAMILIES.items())[6:])!r}.items():
            for kind in 1, 2, 3, 5: attempt(f'{{name}} {{kind}}', socket.socket, number, kind, 0)""", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EINVAL"),
    _net("rare_protocols", """
        for name, (kind, protocol) in dict(sctp=(1, 132), sctp_packets=(5, 132), dccp=(6, 33), udplite=(2, 136), l2tp=(2, 115)).items():
            attempt(name, socket.socket, socket.AF_INET, kind, protocol)""", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EINVAL", "EPERM"),
    _net("network_namespace_of_process_1", """
        attempt('open', os.open, '/proc/1/ns/net', os.O_RDONLY)
        attempt('own', lambda: call('setns', os.open('/proc/self/ns/net', os.O_RDONLY), 0x40000000))""", "EINVAL", "EOPNOTSUPP"),
    _net("packets_with_a_forged_source", """
        def forged():
            handle = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            handle.setsockopt(socket.IPPROTO_IP, 19, 1); handle.bind(('8.8.8.8', 9)); return handle.sendto(b'x', ('127.0.0.1', 9))
        attempt('transparent', forged)""", "ENOPROTOOPT", "EADDRNOTAVAIL", "EINVAL"),
]  # fmt: skip
