import java.io.BufferedOutputStream;
import java.io.Closeable;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.security.SecureRandom;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import javax.transaction.xa.XAException;
import javax.transaction.xa.Xid;
import org.msgpack.core.MessagePack;
import org.msgpack.core.MessagePackException;
import org.msgpack.core.MessagePacker;
import org.msgpack.core.MessageUnpacker;
import org.msgpack.value.Value;
import org.msgpack.value.ValueFactory;

/** A session of xaqueue's server, by the protocol of xaqueue(5): one socket, one request at a time. */
final class XaqueueSession implements Closeable {
    private final SocketChannel channel;
    private final MessagePacker out;
    private final MessageUnpacker in;
    private long requests;
    /** By this a later session names this one, when it is lost. */
    final byte[] key = new byte[16];
    /** The id of the space. */
    final String space;

    /** where: the path of a Unix socket, with a slash in it, or host:port. lost: the key of the session that this one comes instead of; null for none. */
    XaqueueSession(String where, byte[] lost) throws IOException, XAException {
        new SecureRandom().nextBytes(key);
        int colon = where.lastIndexOf(':');
        channel = SocketChannel.open(where.contains("/") ? UnixDomainSocketAddress.of(where)
            : new InetSocketAddress(where.substring(0, colon), Integer.parseInt(where.substring(colon + 1))));
        out = MessagePack.newDefaultPacker(new BufferedOutputStream(Channels.newOutputStream(channel)));
        in = MessagePack.newDefaultUnpacker(Channels.newInputStream(channel));
        Map<String, Object> options = new HashMap<>(Map.of("protocol", 4, "session", key));
        if (lost != null) {
            options.put("instead_of", lost); // what it has sent and is not read yet never is
        }
        space = field(call("hello", options), "space").toString();
    }

    boolean isLost() {
        return !channel.isOpen();
    }

    /** IOException: whether it was carried out is not known, and the session is lost. XAException: what the server says. */
    Value call(String method, Object... parameters) throws IOException, XAException {
        Value error = null;
        try {
            pack(List.of(0, requests, method, List.of(parameters)));
            out.flush();
            List<Value> answer = in.unpackValue().asArrayValue().list();
            boolean isOurs = answer.get(1).asIntegerValue().asLong() == requests++;
            error = answer.get(2);
            if (isOurs && error.isNilValue()) {
                return answer.get(3);
            }
            if (!isOurs) { // a server that takes no more sessions says so, as request 0, and hangs up
                close();
            }
        } catch (IOException | MessagePackException broken) {
            close();
            throw broken instanceof IOException ? (IOException) broken : new IOException(broken);
        }
        XAException refused = new XAException(field(error, "error") + ": " + field(error, "message"));
        refused.errorCode = field(error, "code").asIntegerValue().asInt();
        throw refused;
    }

    private static Value field(Value map, String name) {
        return map.asMapValue().map().get(ValueFactory.newString(name));
    }

    private void pack(Object value) throws IOException {
        if (value instanceof byte[] bytes) {
            out.packBinaryHeader(bytes.length).writePayload(bytes);
        } else if (value instanceof Xid xid) {
            pack(List.of(xid.getFormatId(), xid.getGlobalTransactionId(), xid.getBranchQualifier()));
        } else if (value instanceof List<?> list) {
            out.packArrayHeader(list.size());
            for (Object one : list) {
                pack(one);
            }
        } else if (value instanceof Map<?, ?> map) {
            out.packMapHeader(map.size());
            for (Map.Entry<?, ?> one : map.entrySet()) {
                pack(one.getKey());
                pack(one.getValue());
            }
        } else if (value instanceof String text) {
            out.packString(text);
        } else if (value instanceof Double seconds) {
            out.packDouble(seconds);
        } else {
            out.packLong(((Number) value).longValue());
        }
    }

    @Override
    public void close() {
        try {
            channel.close();
        } catch (IOException gone) {
            // it is closed
        }
    }
}
