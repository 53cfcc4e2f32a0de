"""What is written into a container from outside."""

from cagewrap.keeper.guest import passwd_with_home, resolv_conf

PASSWD = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"


def test_home_of_an_entry_is_replaced_and_the_rest_kept():
    after = passwd_with_home(PASSWD, 0, 0, "root", "/home/me")
    assert after == PASSWD.replace("/root:/bin", "/home/me:/bin")
    assert passwd_with_home(after, 0, 0, "root", "/home/me") == after


def test_missing_entry_is_added():
    after = passwd_with_home(PASSWD, 1002, 1003, "me", "/home/me")
    assert after == PASSWD + "me:x:1002:1003::/home/me:/bin/sh\n"
    assert passwd_with_home("", 0, 0, "root", "/h") == "root:x:0:0::/h:/bin/sh\n"


def test_only_the_first_entry_of_a_uid_counts():
    text = "a:x:0:0::/a:\nb:x:0:0::/b:/bin/sh\n"
    assert (
        passwd_with_home(text, 0, 0, "root", "/h") == "a:x:0:0::/h:/bin/sh\nb:x:0:0::/b:/bin/sh\n"
    )


def test_resolv_conf_keeps_the_forwarder_and_takes_the_hosts_servers():
    inside = b"search old.example\nnameserver 10.0.2.3\nnameserver 192.0.2.1\n"
    host = b"search new.example\nnameserver 127.0.0.53\nnameserver 192.0.2.2\noptions edns0\n"
    assert resolv_conf(host, inside) == (
        b"nameserver 10.0.2.3\nsearch new.example\nnameserver 192.0.2.2\noptions edns0\n"
    )


def test_resolv_conf_takes_pastas_forwarder_only_when_nothing_else_is_reachable():
    inside = b"nameserver 169.254.1.1\nnameserver 192.0.2.1\n"
    assert resolv_conf(b"nameserver 192.0.2.2\n", inside) == b"nameserver 192.0.2.2\n"
    assert resolv_conf(b"search a\nnameserver 127.0.0.53\n", inside) == (
        b"search a\nnameserver 169.254.1.1\n"
    )


def test_resolv_conf_without_a_forwarder_is_the_hosts_less_loopback():
    host = b"nameserver ::1\nnameserver 2001:db8::1\n"
    assert resolv_conf(host, b"nameserver 192.0.2.9\n") == b"nameserver 2001:db8::1\n"
