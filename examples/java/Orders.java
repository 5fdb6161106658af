import bitronix.tm.BitronixTransactionManager;
import bitronix.tm.TransactionManagerServices;
import bitronix.tm.internal.XAResourceHolderState;
import bitronix.tm.recovery.RecoveryException;
import bitronix.tm.resource.ResourceRegistrar;
import bitronix.tm.resource.common.AbstractXAResourceHolder;
import bitronix.tm.resource.common.RecoveryXAResourceHolder;
import bitronix.tm.resource.common.ResourceBean;
import bitronix.tm.resource.common.XAResourceHolder;
import bitronix.tm.resource.common.XAResourceProducer;
import bitronix.tm.resource.common.XAStatefulHolder;
import bitronix.tm.resource.jdbc.PoolingDataSource;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import javax.naming.Reference;
import javax.transaction.Status;
import javax.transaction.xa.XAResource;

/**
 * Orders come in: a row in PostgreSQL and a message in a queue, both or neither, under the transaction manager Bitronix.
 *
 * <p>java Orders SERVER DATABASE DIRECTORY SECONDS: two threads for so long, or recovery alone where it is 0. SERVER is a
 * socket's absolute path or host:port, whose space has the queue "orders"; DATABASE is a URL of JDBC, with the table orders (id text);
 * DIRECTORY has Bitronix's journal.
 */
public final class Orders {
    private static final int THREADS = 2;
    private static BitronixTransactionManager transactions;
    private static PoolingDataSource database;

    public static void main(String[] words) throws Exception {
        if (words.length != 4) {
            System.err.println("usage: java Orders SERVER DATABASE DIRECTORY SECONDS");
            System.exit(2);
        }
        // Bitronix 2.1.4 loses decisions where its journal is swapped, and where its recovery works beside transactions:
        // so the journal is large, and recovery is for the start.
        TransactionManagerServices.getConfiguration().setServerId("orders")
            .setLogPart1Filename(words[2] + "/1.tlog").setLogPart2Filename(words[2] + "/2.tlog").setMaxLogSizeInMb(64)
            .setBackgroundRecoveryIntervalSeconds(100_000).setDisableJmx(true).setGracefulShutdownInterval(1);
        database = new PoolingDataSource();
        database.setClassName("org.postgresql.xa.PGXADataSource");
        database.setUniqueName("database");
        database.setMaxPoolSize(THREADS + 2);
        database.getDriverProperties().setProperty("url", words[1]);
        database.init();
        Space space = new Space("queue", words[0]);
        space.init();
        transactions = TransactionManagerServices.getTransactionManager(); // finishes what a crash has left
        System.out.println("recovered");
        long until = System.nanoTime() + Long.parseLong(words[3]) * 1_000_000_000L;
        CountDownLatch ended = new CountDownLatch(THREADS);
        for (int number = 0; number < THREADS; number++) {
            new Thread(() -> {
                for (XaqueueResource queue = space.opened(); System.nanoTime() < until; ) {
                    take(queue);
                }
                ended.countDown();
            }).start();
        }
        ended.await();
        transactions.shutdown();
        System.exit(0);
    }

    private static void take(XaqueueResource queue) {
        String id = UUID.randomUUID().toString();
        try {
            transactions.begin();
            try (Connection connection = database.getConnection();
                    PreparedStatement insert = connection.prepareStatement("insert into orders values (?)")) {
                insert.setString(1, id);
                insert.executeUpdate();
                transactions.getTransaction().enlistResource(queue);
                queue.enqueue("orders", id.getBytes());
                transactions.commit();
            } finally {
                if (transactions.getStatus() != Status.STATUS_NO_TRANSACTION) {
                    transactions.rollback();
                }
            }
        } catch (Exception failed) { // its row and its message are both there, or neither, at the latest after recovery
            System.out.println(failed);
        }
    }

    /** What Bitronix wants to know of a resource. */
    private static final class Space extends ResourceBean implements XAResourceProducer {
        private final String where;
        private final Map<XAResource, Holder> holders = new ConcurrentHashMap<>();
        private transient XaqueueResource recovering;

        Space(String name, String where) {
            this.where = where;
            setUniqueName(name);
        }

        XaqueueResource opened() {
            XaqueueResource resource = new XaqueueResource(where);
            holders.put(resource, new Holder(resource, this));
            return resource;
        }

        @Override
        public void init() {
            try {
                ResourceRegistrar.register(this);
            } catch (RecoveryException failed) {
                throw new IllegalStateException(failed);
            }
        }

        @Override
        public XAResourceHolderState startRecovery() {
            recovering = recovering == null ? opened() : recovering;
            return new XAResourceHolderState(new RecoveryXAResourceHolder(holders.get(recovering)), this);
        }

        @Override
        public void endRecovery() {}

        @Override
        public void setFailed(boolean failed) {}

        @Override
        public XAResourceHolder findXAResourceHolder(XAResource resource) {
            return holders.get(resource);
        }

        @Override
        public XAStatefulHolder createPooledConnection(Object factory, ResourceBean bean) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Reference getReference() {
            return null;
        }

        @Override
        public void close() {
            ResourceRegistrar.unregister(this);
        }
    }

    private static final class Holder extends AbstractXAResourceHolder {
        private final XaqueueResource resource;
        private final ResourceBean space;

        Holder(XaqueueResource resource, ResourceBean space) {
            this.resource = resource;
            this.space = space;
        }

        @Override
        public XAResource getXAResource() {
            return resource;
        }

        @Override
        public ResourceBean getResourceBean() {
            return space;
        }

        @Override
        public List<XAResourceHolder> getXAResourceHolders() {
            return List.of(this);
        }

        @Override
        public Object getConnectionHandle() {
            return resource;
        }

        @Override
        public Date getLastReleaseDate() {
            return new Date();
        }

        @Override
        public void close() {
            resource.close();
        }
    }
}
