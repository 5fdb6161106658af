import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import javax.transaction.xa.XAException;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;
import org.msgpack.value.Value;

/** A space's server as a resource of any transaction manager of Java. One thread at a time; each has its own. */
final class XaqueueResource implements XAResource {
    private static final int MOST = 1000;

    private record Branch(int getFormatId, byte[] getGlobalTransactionId, byte[] getBranchQualifier) implements Xid {}

    private final String where;
    private XaqueueSession session;
    private int timeoutS;

    XaqueueResource(String where) {
        this.where = where;
    }

    // A program's part

    byte[] enqueue(String queue, byte[] body) throws XAException {
        return call("enqueue", queue, body).asBinaryValue().asByteArray();
    }

    /** A message's body, or null where none came for so long. */
    byte[] dequeue(String queue, double waitS) throws XAException {
        Value message = call("dequeue", queue, Map.of("wait_s", waitS));
        return message.isNilValue() ? null : message.asArrayValue().get(4).asBinaryValue().asByteArray();
    }

    // A transaction manager's part

    @Override
    public void start(Xid xid, int flags) throws XAException {
        if (timeoutS > 0 && flags == TMNOFLAGS) {
            call("start", xid, flags, timeoutS);
        } else {
            call("start", xid, flags);
        }
    }

    @Override
    public void end(Xid xid, int flags) throws XAException {
        call("end", xid, flags);
    }

    @Override
    public int prepare(Xid xid) throws XAException {
        return call("prepare", xid).toString().equals("rdonly") ? XA_RDONLY : XA_OK;
    }

    @Override
    public void commit(Xid xid, boolean onePhase) throws XAException {
        call("commit", xid, onePhase ? TMONEPHASE : TMNOFLAGS);
    }

    @Override
    public void rollback(Xid xid) throws XAException {
        call("rollback", xid);
    }

    @Override
    public void forget(Xid xid) throws XAException {
        call("forget", xid);
    }

    /** All of them at the start of a scan, whatever the flags. */
    @Override
    public Xid[] recover(int flags) throws XAException {
        List<Xid> found = new ArrayList<>();
        List<Value> some = List.of();
        for (int flag = flags & TMSTARTRSCAN; flag != 0 || some.size() == MOST; flag = TMNOFLAGS) {
            some = call("recover", MOST, flag).asArrayValue().list();
            for (Value one : some) {
                List<Value> xid = one.asArrayValue().list();
                found.add(new Branch(xid.get(0).asIntegerValue().asInt(),
                    xid.get(1).asBinaryValue().asByteArray(), xid.get(2).asBinaryValue().asByteArray()));
            }
        }
        return found.toArray(Xid[]::new);
    }

    @Override
    public boolean isSameRM(XAResource other) throws XAException {
        return other instanceof XaqueueResource one && opened().space.equals(one.opened().space);
    }

    @Override
    public int getTransactionTimeout() {
        return timeoutS;
    }

    /** 0 is the default here, as JTA has it: no limit of its own. */
    @Override
    public boolean setTransactionTimeout(int seconds) {
        timeoutS = seconds;
        return true;
    }

    void close() {
        if (session != null) {
            session.close();
        }
    }

    private Value call(String method, Object... parameters) throws XAException {
        try {
            return opened().call(method, parameters);
        } catch (IOException lost) {
            throw failed(lost);
        }
    }

    /** A lost session is replaced by one that names it, so that nothing of it is carried out behind the next call. */
    private XaqueueSession opened() throws XAException {
        try {
            if (session == null || session.isLost()) {
                session = new XaqueueSession(where, session == null ? null : session.key);
            }
            return session;
        } catch (IOException unreachable) {
            throw failed(unreachable);
        }
    }

    private static XAException failed(IOException cause) {
        XAException failed = new XAException(XAException.XAER_RMFAIL); // the outcome is unknown: recovery asks again
        failed.initCause(cause);
        return failed;
    }
}
